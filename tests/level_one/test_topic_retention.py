"""What retention removes: whole objects from the front, by Kafka's rules, never by a clock nobody trusts."""

from __future__ import annotations

import logging
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.node.config.node_config import RetentionSection
from strandline.node.level_one.topic_retention import (
    MAX_BATCHES,
    Kept,
    Stretch,
    kept,
    stretches_of,
    wanted_start,
)
from strandline.statemachine.controller.topic_config import DAY
from strandline.statemachine.partition.level_one import LevelOneExtent
from strandline.statemachine.partition.partition_commands import AdvanceReconciled, SetStartOffset
from tests.level_one.upkeep_harness import HandReplica, Node, raising, upkeep_node

HOUR = 3_600_000
EVERYTHING = Kept(None, None)


def stretches(*of: tuple[int, int]) -> list[Stretch]:
    """(newest timestamp, size) of stretches of ten offsets each."""
    return [Stretch(10 * (number + 1), timestamp, size) for number, (timestamp, size) in enumerate(of)]


def start(of: list[Stretch], keep: Kept, now_ms: int | None = 1_000, start_offset: int = 0) -> int:
    return wanted_start(of, start_offset, sum(stretch.size for stretch in of), keep, now_ms)


@pytest.mark.parametrize(
    ("configs", "wanted"),
    [
        ({}, Kept(7 * DAY, None)),
        ({"retention.ms": "-1"}, EVERYTHING),
        ({"retention.ms": "0"}, Kept(0, None)),
        ({"retention.bytes": "0", "retention.ms": "-1"}, Kept(None, 0)),
        ({"retention.bytes": "-1"}, Kept(7 * DAY, None)),
        ({"retention.bytes": "5", "cleanup.policy": "compact"}, EVERYTHING),
        ({"retention.bytes": "5", "cleanup.policy": "compact,delete"}, Kept(7 * DAY, 5)),
        ({"retention.bytes": "5", "cleanup.policy": ""}, EVERYTHING),
    ],
)
def test_what_configs_keep(configs: dict[str, str], wanted: Kept) -> None:
    assert kept(configs) == wanted


class TestByTime:
    def test_what_is_older_goes_and_the_first_that_is_not_stops_it(self) -> None:
        some = stretches((100, 1), (200, 1), (700, 1), (100, 1))
        assert start(some, Kept(500, None)) == 20
        assert start(some, Kept(800, None)) == 10
        assert start(some, Kept(900, None)) == 0
        assert start(some, Kept(899, None)) == 10
        assert start(some, Kept(0, None)) == 40

    def test_everything_may_go(self) -> None:
        assert start(stretches((1, 1), (2, 1)), Kept(10, None)) == 20
        assert start([], Kept(10, None), start_offset=7) == 7

    def test_a_timestamp_in_the_future_keeps_it_and_all_behind(self) -> None:
        assert start(stretches((10**15, 1), (1, 1)), Kept(10, None)) == 0

    def test_without_a_timestamp_it_goes_with_the_next_that_has_one(self) -> None:
        assert start(stretches((-1, 1), (-1, 1)), Kept(10, None)) == 0
        assert start(stretches((-1, 1), (1, 1), (-1, 1), (999, 1)), Kept(10, None)) == 20
        assert start(stretches((-1, 1), (999, 1)), Kept(10, None)) == 0

    def test_without_the_time_nothing_goes_by_time(self) -> None:
        assert start(stretches((1, 1)), Kept(10, None), now_ms=None) == 0
        assert start(stretches((1, 1), (1, 1)), Kept(10, 1), now_ms=None) == 10


class TestBySize:
    def test_it_goes_while_as_much_is_left_as_is_kept(self) -> None:
        some = stretches((999, 10), (999, 10), (999, 10))
        assert start(some, Kept(None, 31)) == 0
        assert start(some, Kept(None, 30)) == 0
        assert start(some, Kept(None, 21)) == 0
        assert start(some, Kept(None, 20)) == 10
        assert start(some, Kept(None, 9)) == 20
        assert start(some, Kept(None, 0)) == 30

    def test_time_does_not_stop_size_nor_size_time(self) -> None:
        some = stretches((999, 10), (1, 10), (999, 10))
        assert start(some, Kept(500, 20)) == 10
        assert start(stretches((1, 10), (1, 10), (999, 10)), Kept(500, 25)) == 20


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(-1, 60), st.integers(1, 20)), max_size=20),
    st.none() | st.integers(0, 40),
    st.none() | st.integers(0, 200),
    st.none() | st.just(50),
    st.integers(0, 15),
)
def test_beside_kafkas_rule_written_plainly(
    of: list[tuple[int, int]], ms: int | None, size: int | None, now: int | None, start_offset: int
) -> None:
    some = stretches(*of)
    got = start(some, Kept(ms, size), now, start_offset)
    ends = [stretch.end_offset for stretch in some]
    assert got == start_offset or got in ends
    assert got >= start_offset
    gone = [stretch for stretch in some if stretch.end_offset <= got]
    left = [stretch for stretch in some if stretch.end_offset > got]

    def old(stretch: Stretch) -> bool:
        return ms is not None and now is not None and stretch.max_timestamp < now - ms

    if size is None:
        oldest = list(takewhile(old, some))
        dated = [stretch.end_offset for stretch in oldest if stretch.max_timestamp >= 0]
        assert got == max([start_offset, *dated])
    elif got > start_offset:
        assert all(map(old, gone)) or sum(stretch.size for stretch in left) >= size
        # What is at the front now is not too much, by size.
        assert not left or sum(stretch.size for stretch in left[1:]) < size


def objects(replica: HandReplica, *of: tuple[int, int]) -> None:
    """Level-one objects of ten offsets each with (newest timestamp, size)."""
    for timestamp, size in of:
        base = replica.machine.next_offset
        replica.write(size, count=10, timestamp=timestamp)
        unique = (base + 1).to_bytes(16, "big")
        replica.apply(
            AdvanceReconciled(base, [LevelOneExtent(base, base + 10, timestamp, size, 1, 1, unique)])
        )


def look(node: Node) -> None:
    node.run(node.upkeep.retention.step())


def test_the_start_offset_moves_over_both_levels_when_it_is_due() -> None:
    with upkeep_node(retention=RetentionSection(check_seconds=64)) as node:
        node.now_ms = 10 * HOUR
        replica = node.add(group=3, configs={"retention.ms": str(HOUR)})
        objects(replica, (HOUR, 500), (2 * HOUR, 500))
        replica.write(count=5, timestamp=3 * HOUR)
        replica.write(count=5, timestamp=9 * HOUR + 1)
        look(node)
        node.wait(3.5)
        look(node)
        assert replica.proposed == []
        node.wait(1)
        look(node)
        assert replica.proposed == [SetStartOffset(25)]
        assert (replica.machine.start_offset, len(replica.machine.removed)) == (25, 2)
        assert node.upkeep.measures.retention_records == 25
        # The next look is a period later, of a new leader within one.
        node.now_ms += HOUR
        node.wait(60)
        look(node)
        assert len(replica.proposed) == 1
        node.wait(4)
        look(node)
        assert replica.proposed[1:] == [SetStartOffset(30)]
        assert replica.machine.start_offset == replica.machine.high_watermark


def test_sizes_are_those_of_one_copy_in_both_levels() -> None:
    with upkeep_node() as node:
        replica = node.add(configs={"retention.bytes": "1000", "retention.ms": "-1"})
        objects(replica, (1, 400), (1, 400))
        replica.write(599, count=5)
        node.run(node.upkeep.retention.check(replica))
        assert replica.proposed == []
        replica.write(1, count=5)
        node.run(node.upkeep.retention.check(replica))
        assert replica.proposed == [SetStartOffset(10)]


def test_while_the_clock_is_not_trusted_only_size_counts_and_it_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with upkeep_node() as node, caplog.at_level(logging.WARNING, "strandline.node.level_one"):
        node.now_ms = 10 * HOUR
        node.clock.trusted = False
        by_time = node.add(0, configs={"retention.ms": "1"})
        by_size = node.add(1, configs={"retention.bytes": "0", "retention.ms": "1"})
        for replica in (by_time, by_size):
            objects(replica, (HOUR, 500))
        for _ in range(2):
            for replica in (by_time, by_size):
                node.run(node.upkeep.retention.check(replica))
        assert (by_time.machine.start_offset, by_size.machine.start_offset) == (0, 10)
        assert not node.upkeep.status().retention_by_time
        assert len(caplog.records) == 1
        node.clock.trusted = True
        node.run(node.upkeep.retention.check(by_time))
        assert by_time.machine.start_offset == 10


def test_nothing_is_proposed_for_a_topic_that_is_gone_or_led_elsewhere_and_a_refusal_is_tried_again() -> None:
    with upkeep_node(retention=RetentionSection(check_seconds=1)) as node:
        node.now_ms = 100 * DAY
        gone, other, refused = (node.add(number, configs={"retention.ms": "1"}) for number in range(3))
        for replica in (gone, other, refused):
            objects(replica, (HOUR, 500))
        del node.topics.configs[gone.topic_id]
        other.lose()
        refused.endings = ["refuse"]
        look(node)
        node.wait(1)
        look(node)
        assert (gone.asked, other.asked, refused.asked) == (0, 0, 1)
        assert refused.machine.start_offset == 0
        node.wait(1)
        look(node)
        assert refused.machine.start_offset == 10
        assert node.upkeep.measures.retention_moves == 1


def test_compact_only_topics_and_retention_without_limits_keep_everything() -> None:
    with upkeep_node() as node:
        node.now_ms = 100 * DAY
        for number, configs in enumerate([{"cleanup.policy": "compact"}, {"retention.ms": "-1"}]):
            replica = node.add(number, configs=configs)
            objects(replica, (1, 500))
            node.run(node.upkeep.retention.check(replica))
            assert replica.proposed == []


def test_one_check_looks_at_so_many_batches() -> None:
    with upkeep_node() as node:
        replica = node.add()
        for _ in range(MAX_BATCHES + 1):
            replica.write(1)
        assert sum(1 for _ in stretches_of(replica.machine)) == MAX_BATCHES


def test_a_partition_that_fails_does_not_keep_the_others() -> None:
    with upkeep_node() as node:
        node.now_ms = 100 * DAY
        one, two = (node.add(number, group=64, configs={"retention.ms": "1"}) for number in range(2))
        objects(one, (1, 500))
        objects(two, (1, 500))
        said = raising(node, one)
        node.run(node.upkeep.retention.step())
        node.wait(node.config.retention.check_seconds * 2)
        node.run(node.upkeep.retention.step())
        assert len(said) == 1
        assert one.machine.start_offset == 0
        assert two.machine.start_offset == two.machine.next_offset
