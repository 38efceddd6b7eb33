"""The budget of inline batches: two limits for a partition and two for a node, and no flapping at them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from strandline.node.config.node_config import InlineSection
from strandline.node.partition.inline_budget import LEAST_CHARGE, InlineBudget, PartitionBudget, Switch

SIZE = 2 * LEAST_CHARGE
WIDE = InlineSection(
    max_batch_bytes=SIZE,
    partition_bytes_per_second=1000 * SIZE,
    bytes_per_second=1000 * SIZE,
    partition_bytes=1000 * SIZE,
    bytes=1000 * SIZE,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def made(config: InlineSection) -> tuple[Clock, InlineBudget]:
    clock = Clock()
    return clock, InlineBudget(config, clock)


def test_a_small_batch_goes_inline_and_a_large_one_does_not() -> None:
    _, node = made(WIDE)
    budget = PartitionBudget(node)
    assert budget.takes(SIZE, 0)
    assert not budget.takes(SIZE + 1, 0)
    assert budget.inline, "a large batch says nothing of the limits"
    measures = node.measures
    assert (measures.batches, measures.bytes, measures.to_objects, node.kept) == (1, SIZE, 0, SIZE)


def test_without_a_largest_size_nothing_goes_inline() -> None:
    _, node = made(replace(WIDE, max_batch_bytes=0))
    assert not PartitionBudget(node).takes(1, 0)


def test_a_rate_that_is_passed_ends_when_half_of_it_would_do() -> None:
    clock, node = made(replace(WIDE, partition_bytes_per_second=10 * SIZE))
    budget = PartitionBudget(node)
    assert [budget.takes(SIZE, 0) for _ in range(11)] == [True] * 10 + [False]
    # At eight tenths of the rate: below the limit, and yet the way stays the same.
    for _ in range(80):
        clock.now += 1 / 8
        assert not budget.takes(SIZE, 0)
    # At a quarter: what has gathered drains, and that is the end of it.
    ways = []
    for _ in range(20):
        clock.now += 1 / 2.5
        ways.append(budget.takes(SIZE, 0))
    assert ways == sorted(ways)
    assert not ways[0]
    assert ways[-1]
    assert node.measures.switches == Counter({Switch.PARTITION_RATE: 1, Switch.INLINE: 1})


def test_at_the_limit_the_way_does_not_change_with_each_batch() -> None:
    clock, node = made(replace(WIDE, partition_bytes_per_second=10 * SIZE))
    budget = PartitionBudget(node)
    for _ in range(1000):
        clock.now += 1 / 10.5
        budget.takes(SIZE, 0)
    assert sum(node.measures.switches.values()) == 1


def test_a_tiny_batch_counts_for_more_than_its_bytes() -> None:
    _, node = made(replace(WIDE, partition_bytes_per_second=3 * LEAST_CHARGE))
    budget = PartitionBudget(node)
    assert [budget.takes(1, 0) for _ in range(4)] == [True, True, True, False]
    assert node.kept == 3


def test_what_lies_in_the_logs_alone_is_limited_until_half_of_it_is_stored() -> None:
    _, node = made(replace(WIDE, partition_bytes=10 * SIZE))
    budget = PartitionBudget(node)
    assert budget.takes(SIZE, 9 * SIZE)
    assert not budget.takes(SIZE, 9 * SIZE + 1)
    assert not budget.takes(SIZE, 4 * SIZE + 1)
    assert budget.takes(SIZE, 4 * SIZE)
    assert budget.takes(SIZE, 9 * SIZE)
    assert node.measures.switches == Counter({Switch.PARTITION_BYTES: 1, Switch.INLINE: 1})


def test_the_nodes_limits_hold_for_all_its_partitions_together() -> None:
    _, node = made(replace(WIDE, bytes_per_second=4 * SIZE))
    one, other = PartitionBudget(node), PartitionBudget(node)
    assert [one.takes(SIZE, 0), other.takes(SIZE, 0), one.takes(SIZE, 0), other.takes(SIZE, 0)] == [True] * 4
    assert [one.takes(SIZE, 0), other.takes(SIZE, 0)] == [False] * 2
    assert node.measures.switches == Counter({Switch.NODE_RATE: 2})
    _, node = made(replace(WIDE, bytes=2 * SIZE))
    one, other = PartitionBudget(node), PartitionBudget(node)
    assert [one.takes(SIZE, 0), other.takes(SIZE, 0), one.takes(SIZE, 0)] == [True, True, False]
    assert node.measures.switches == Counter({Switch.NODE_BYTES: 1})
    node.kept = 0
    assert one.takes(SIZE, 0)


def test_the_storing_is_called_when_half_of_a_limit_is_used() -> None:
    _, node = made(replace(WIDE, partition_bytes=10 * SIZE, bytes=100 * SIZE))
    called: list[int] = []
    node.on_half = lambda: called.append(node.kept)
    budget, other = PartitionBudget(node), PartitionBudget(node)
    budget.takes(SIZE, 4 * SIZE)
    assert called == []
    budget.takes(SIZE, 4 * SIZE + 1)
    assert called == [2 * SIZE]
    node.kept = 50 * SIZE
    other.takes(SIZE, 0)
    assert called == [2 * SIZE, 51 * SIZE]
