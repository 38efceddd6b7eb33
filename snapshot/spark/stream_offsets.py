"""A stream's offsets: what Spark keeps of them, how far the next micro-batch goes, and what it then reads.

Spark writes a batch's end to the query's checkpoint before the batch is read, and repeats the batch from
there if the driver dies. So a batch must follow from its two ends alone. Two rules see to that:

- What a new query has at its beginning is `{}`, whatever the options say. Spark does not keep a first offset;
  it asks for it again after a restart, and "latest" would then be another one.
- The end of the batch in which a partition enters says where it entered (`ENTERED`). Every offset that a
  batch reads from is thus the end of an earlier batch or stands in its own end, and Spark has kept both.
  Releases before this rule read nothing of a partition in the batch in which it entered, and their ends do
  not say.

A topic's id stands beside its offsets, so that one that was deleted and created again is known as another.
So does, of each partition, the term of the state that was seen: every later leader wrote behind what that
state had, unless the cluster was restored to an earlier point, which moves its terms on (KIP-320).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

from strandline.snapshot.spark.options import BEGUN, ENTERED, TOPIC_ID, SourceError
from strandline.snapshot.spark.views import PartitionView
from strandline.statemachine.controller.controller_state import Topic

TERMS: Final = "leader_epochs"
"""Key in the entry BEGUN, which earlier releases pass over, of the terms by topic and partition."""

RESTORED: Final = "the cluster was restored, and has other records from offset {} on"

Views = Mapping[tuple[str, int], PartitionView | None]


@dataclass
class TopicOffsets:
    """The next offset to read of each partition of a topic."""

    topic_id: bytes
    offsets: dict[int, int] = field(default_factory=dict)
    entered: dict[int, int] = field(default_factory=dict)
    """Offsets at which those begin that the batch before has not."""
    terms: dict[int, int] = field(default_factory=dict)
    """Of partitions, the term of the state by which the offset was set; not of those that an earlier release
    set."""


Offsets = dict[str, TopicOffsets]


def to_json(offsets: Offsets) -> dict[str, Any]:
    """As Spark keeps them. Spark compares texts, so equal offsets give equal ones."""
    terms = {topic: _numbered(one.terms) for topic, one in sorted(offsets.items()) if one.terms}
    told: dict[str, Any] = {}
    if terms or not offsets:
        told[BEGUN] = {TERMS: terms} if terms else {}
    for topic, one in sorted(offsets.items()):
        told[topic] = {TOPIC_ID: one.topic_id.hex(), **_numbered(one.offsets)}
        if one.entered:
            told[topic][ENTERED] = _numbered(one.entered)
    return told


def _numbered(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(number): offsets[number] for number in sorted(offsets)}


def from_json(kept: Mapping[str, Any]) -> Offsets:
    """The offsets that `to_json` gave; raises SourceError for anything else, as another source's."""
    offsets: Offsets = {}
    try:
        terms = kept.get(BEGUN, {}).get(TERMS, {})
        for topic, entry in kept.items():
            if topic == BEGUN:
                continue
            numbers = {key: entry[key] for key in entry if key not in (TOPIC_ID, ENTERED)}
            entered = entry.get(ENTERED, {})
            topic_id = bytes.fromhex(entry[TOPIC_ID])
            offsets[topic] = TopicOffsets(
                topic_id, _by_number(numbers), _by_number(entered), _by_number(terms.get(topic, {}))
            )
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise SourceError(
            f"the query's checkpoint has offsets {dict(kept)!r}, which this source did not write: "
            "start the query with another checkpointLocation"
        ) from error
    return offsets


def _by_number(told: Mapping[str, Any]) -> dict[int, int]:
    return {int(number): int(offset) for number, offset in told.items()}


def known(offsets: Offsets, view: PartitionView) -> int | None:
    """The next offset to read of a view's partition; None if the stream does not have the partition."""
    topic = offsets.get(view.topic)
    return topic.offsets.get(view.number) if topic and topic.topic_id == view.topic_id else None


def put(offsets: Offsets, view: PartitionView, offset: int) -> None:
    """Set the next offset of a view's partition, whose topic has no other id in `offsets`."""
    topic = offsets.setdefault(view.topic, TopicOffsets(view.topic_id))
    topic.offsets[view.number] = offset
    topic.terms[view.number] = view.term


def replaced_from(topic: TopicOffsets, view: PartitionView, until: int) -> int | None:
    """The first offset below `until` that another record has by now than when the offsets were set.

    None where all have the same: without a restore in between a later term begins at or behind them.
    """
    term = topic.terms.get(view.number)
    if term is None:
        return None
    later = bisect_right(view.leader_epochs, term, key=itemgetter(0))
    first = view.leader_epochs[later][1] if later < len(view.leader_epochs) else until
    return first if first < until else None


def is_older(topic: TopicOffsets, view: PartitionView) -> bool:
    """Whether a view that ends before what was read is of a state from before that.

    No log becomes shorter in its term, so the newer state is not there yet, or not any more.
    """
    term = topic.terms.get(view.number)
    return term is not None and view.term <= term


def enter(offsets: Offsets, view: PartitionView) -> None:
    """Say that a view's partition is read from the view's first offset on, in the batch that ends here."""
    offsets.setdefault(view.topic, TopicOffsets(view.topic_id)).entered[view.number] = view.first


def same(one: Offsets, other: Offsets) -> bool:
    """Whether the next offset to read of each partition is the same in both."""
    return {name: (topic.topic_id, topic.offsets) for name, topic in one.items()} == {
        name: (topic.topic_id, topic.offsets) for name, topic in other.items()
    }


def still_there(start: Offsets, topics: Mapping[str, Topic]) -> tuple[Offsets, list[str]]:
    """A copy without the topics that are gone, and what is lost by that; `topics` are those there are.

    Where partitions entered is no matter of later batches, and left out.
    """
    kept: Offsets = {}
    lost = []
    for name, topic in start.items():
        now = topics.get(name)
        if now is not None and now.topic_id == topic.topic_id:
            kept[name] = TopicOffsets(topic.topic_id, dict(topic.offsets), terms=dict(topic.terms))
        else:
            again = " and created again" if now is not None else ""
            lost.append(f"topic {name!r} was deleted{again}, so what the stream had not read of it is gone")
    return kept, lost


def ranges(start: Offsets, end: Offsets, views: Views) -> tuple[list[PartitionView], list[str]]:
    """The part of each partition that a batch reads, and what of it is lost.

    Raises SourceError where a view is older than the batch: its records are not lost, and would be left out.
    """
    wanted, lost = [], []
    for name, topic in end.items():
        before = start.get(name)
        for number, last in topic.offsets.items():
            begin = before.offsets.get(number) if before and before.topic_id == topic.topic_id else None
            if begin is None:
                begin = topic.entered.get(number)
            if begin is None or begin >= last:
                continue
            view = views.get((name, number))
            if view is None or view.topic_id != topic.topic_id:
                gone = "the partition is gone, or not asked for any more"
                lost.append(f"{name}-{number}, offsets {begin} to {last}: {gone}")
                continue
            if view.first > begin:
                lost.append(
                    f"{name}-{number}: records below offset {view.first} were deleted, {begin} was next"
                )
            if view.end < last and is_older(topic, view):
                raise SourceError(
                    f"{name}-{number} ends at offset {view.end} in what is published now, and a newer state "
                    f"had {last}: start the query again once its leader has published that"
                )
            if (others := replaced_from(topic, view, last)) is not None:
                lost.append(f"{name}-{number}: {RESTORED.format(others)}, and was read up to {last}")
                last = max(begin, others)  # the next batch begins with these
            elif view.end < last:
                lost.append(f"{name}-{number}: it ends at offset {view.end} now, and was read up to {last}")
            wanted.append(view.within(begin, last))
    return [view for view in wanted if view.first < view.end], lost
