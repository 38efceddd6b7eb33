"""The content of a version's transactions: records, and the cut that it has come to.

The offsets' metadata name the newest stored state and the version it is of. So the records, the cut and the
state from which to come to it again are one atom.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from strandline.cluster.view_worker import limits
from strandline.cluster.view_worker.fetched import Cut, Place
from strandline.cluster.view_worker.node_link import TopicPlace
from strandline.cluster.view_worker.steps import CannotRun
from strandline.snapshot.views import json_rows
from strandline.snapshot.views.sink import Changes
from strandline.statemachine.controller.view_state import ViewTopic
from strandline.statemachine.views.plan import Sink as SinkPlan

REQUEST_SECONDS: Final = 30.0
_OFFSETS_AT_ONCE: Final = 1000


class Committed(NamedTuple):
    """The cut that was committed last, and what was told with it."""

    cut: Cut
    state: str
    attempt: int
    """The version that the state is of."""
    phase: str
    part: int
    """Parts of the content that were written, of a version that is being filled."""


def metadata(state: str, attempt: int, phase: str, part: int) -> str:
    """The metadata of an offset."""
    return json.dumps([state, attempt, phase, part], separators=(",", ":"))


def committed(
    consumer: Consumer, places: Iterable[Place], seconds: float = REQUEST_SECONDS
) -> Committed | None:
    """Give what the consumer's group has committed, once no transaction is open there; None for nothing.

    Raises KafkaException.
    """
    asked = [TopicPartition(*place) for place in places]
    found = []
    for first in range(0, len(asked), _OFFSETS_AT_ONCE):
        found += consumer.committed(asked[first : first + _OFFSETS_AT_ONCE], timeout=seconds)
    cut: Cut = {}
    told: list[Any] = ["", 0, "", 0]
    for one in found:
        if one.error is not None:
            raise KafkaException(one.error)
        if one.offset >= 0:
            cut[one.topic, one.partition] = one.offset
            told = json.loads(one.metadata) if one.metadata else told
    return Committed(cut, *told) if cut else None


class Written(NamedTuple):
    """Records for a topic: Arrow arrays of large binaries, whose values are null for tombstones."""

    place: TopicPlace
    keys: Any
    values: Any


def records(
    views: Iterable[ViewTopic],
    plans: Mapping[str, SinkPlan],
    topics: Mapping[bytes, TopicPlace],
    said: Mapping[str, Changes],
) -> Iterator[Written]:
    """Give what sinks have said as records; raises CannotRun."""
    for view in views:
        changes = said.get(view.sink)  # views with one query have one sink, and a topic each
        if changes is None:
            continue
        place = topics.get(view.topic_id)
        if place is None:
            raise CannotRun("the topic of a view is gone: drop the program and apply it again")
        keys, values = json_rows.columns(plans[view.sink], changes)
        if (reason := limits.too_large(view, place, keys, values)) is not None:
            raise CannotRun(reason)
        if len(keys):
            yield Written(place, keys, values)
