"""The records of a version, in Kafka transactions together with the cut that it has come to.

The offsets' metadata name the newest stored state and the version it is of. So the records, the cut and the
state from which to come to it again are one atom.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby, islice
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from strandline.cluster.view_worker import limits
from strandline.cluster.view_worker.fetched import Cut, Place
from strandline.cluster.view_worker.node_link import TopicPlace
from strandline.cluster.view_worker.steps import CannotRun
from strandline.cluster.view_worker.surroundings import Surroundings
from strandline.snapshot.views import json_rows
from strandline.snapshot.views.sink import Changes
from strandline.statemachine.controller.view_state import ViewTopic
from strandline.statemachine.views.plan import Sink as SinkPlan

REQUEST_SECONDS: Final = 30.0
RETRY_SECONDS: Final = 0.1
_OFFSETS_AT_ONCE: Final = 1000
AT_ONCE: Final = 10_000
"""Records that librdkafka is given at once, of the 100,000 that it takes."""


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


def records(
    views: Iterable[ViewTopic],
    plans: Mapping[str, SinkPlan],
    topics: Mapping[bytes, TopicPlace],
    said: Mapping[str, Changes],
) -> Iterator[tuple[str, bytes, bytes | None]]:
    """Give topic, key and value of what sinks have said; raises CannotRun."""
    for view in views:
        changes = said.get(view.sink)  # views with one query have one sink, and a topic each
        if changes is None:
            continue
        place = topics.get(view.topic_id)
        if place is None:
            raise CannotRun("the topic of a view is gone: drop the program and apply it again")
        most = limits.record_bytes(place)
        for key, value in json_rows.records(plans[view.sink], changes):
            if len(key) + len(value or b"") > most:
                raise CannotRun(limits.too_large(view, place, key, value))
            yield place.name, key, value


class Outputs:
    """The transactional producer of one version."""

    def __init__(self, producer: Producer, consumer: Consumer, around: Surroundings) -> None:
        """Shuts out the process before, and ends its transaction; raises KafkaException."""
        self._producer = producer
        self._around = around
        self._group = consumer.consumer_group_metadata()
        self._patiently(lambda: producer.init_transactions(REQUEST_SECONDS))

    def commit(
        self, records: Iterable[tuple[str, bytes, bytes | None]], cut: Mapping[Place, int], metadata: str
    ) -> int:
        """Write records (topic, key, value) and a cut in one transaction; the number of records.

        Raises KafkaException, after which the process must end: only a new one knows what became of it.
        """
        producer, count = self._producer, 0
        producer.begin_transaction()
        for topic, several in groupby(records, key=lambda record: record[0]):
            while messages := [{"key": key, "value": value} for _, key, value in islice(several, AT_ONCE)]:
                count += len(messages)
                self._produce(topic, messages)
        offsets = [TopicPartition(*place, offset, metadata) for place, offset in cut.items()]
        if offsets:
            self._patiently(
                lambda: producer.send_offsets_to_transaction(offsets, self._group, REQUEST_SECONDS)
            )
        self._patiently(lambda: producer.commit_transaction(REQUEST_SECONDS))
        return count

    def _produce(self, topic: str, messages: list[dict[str, Any]]) -> None:
        """Give librdkafka messages together: each that comes alone wakes its thread."""
        while self._producer.produce_batch(topic, messages) < len(messages):
            messages = [each for each in messages if "_error" in each]
            for message in messages:
                error = message.pop("_error")
                if error.code() != KafkaError._QUEUE_FULL:
                    raise KafkaException(error)
            self._producer.poll(RETRY_SECONDS)

    def _patiently(self, ask: Callable[[], Any]) -> None:
        """Try again what librdkafka says may be tried again, for REQUEST_SECONDS."""
        deadline = self._around.monotonic() + REQUEST_SECONDS
        while True:
            try:
                ask()
            except KafkaException as error:
                cause = error.args[0]
                if (
                    not (isinstance(cause, KafkaError) and cause.retriable())
                    or self._around.monotonic() > deadline
                ):
                    raise
                self._around.sleep(RETRY_SECONDS)
            else:
                return
