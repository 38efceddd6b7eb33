"""Deletes by the order of names, up to a bound, and sets everything right again at the next sweep."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, TypeVar, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.node.config.node_config import CollectorSection
from strandline.node.controller.controller_leader import EPOCH_NEEDED
from strandline.node.gc.collectable_epochs import Maximum
from strandline.node.gc.collector import FULL_SWEEP_SECONDS, MAX_PAUSE_SECONDS, PAGE, Collector
from strandline.node.objectstore.store import MAX_DELETE, NotDone, OutcomeUnknown, StoreError
from strandline.statemachine.controller.controller_commands import (
    AdvanceClusterEpoch,
    FenceNode,
    SetCollection,
)
from strandline.statemachine.object_names import parse_object_name
from tests.gc.parts import ListedStore, name
from tests.level_zero.samples import run, started
from tests.simulation.node import SimNode
from tests.simulation.world import World
from tests.statemachine.controller_harness import Log, registration

T = TypeVar("T")


class Site:
    """A collector of node 1 of three, over names in memory; M is what the test says."""

    def __init__(self, *, grace: float = 0.0, rate: int = 1_000, nodes: Sequence[int] = (1, 2, 3)) -> None:
        self.world = World(1)
        self.node: SimNode = started(self.world)
        self.log = Log(3)
        self.log.do(AdvanceClusterEpoch(100))
        self.store = ListedStore()
        self.m = 0
        self.registered = True
        self.written = 0
        self.machine = self.log.machine
        config = CollectorSection(grace_seconds=grace, deletes_per_second=rate)
        me = cast(Any, self)
        self.collector = Collector(
            self.store, config, me, me, 1, lambda: nodes, loop=self.node.loop,
            calls=me, newest_epoch=lambda: self.machine.cluster_epoch, written_epoch=lambda: self.written,
            may_begin=lambda: self.registered,
        )  # fmt: skip

    def serve(self, method: str, handler: Any) -> None:
        assert method == EPOCH_NEEDED
        self.asked = handler

    def maximum(self) -> Maximum:
        return Maximum(self.m, self.machine.cluster_epoch, None, None, None, None)

    def start(self) -> None:
        self.node.call(self.collector.start)
        self.world.run(self.world.now)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return run(self.world, self.node, coroutine)

    def pass_time(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)

    def sweep(self) -> None:
        """What a period does."""
        self.run(self.collector._turn())

    def sweeps(self) -> list[tuple[str, str]]:
        """Listings, without the looks behind the newest epoch."""
        return [
            (prefix, after) for prefix, after in self.store.lists if after < "l0/0001/" + "0" * 17 + "1000"
        ]

    def status(self, key: str) -> Any:
        return self.collector.status()[key]

    def left(self) -> list[int]:
        return [parse_object_name(left).epoch for left in self.store.names]


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    with site.world:
        yield site
        site.world.check()


def test_what_is_not_above_m_goes_and_no_name_behind_is_read(site: Site) -> None:
    site.store.add([name(epoch, n) for epoch in range(1, 21) for n in range(200)])
    site.m = 7
    site.sweep()
    assert site.left() == [epoch for epoch in range(8, 21) for _ in range(200)]
    assert site.sweeps() == [("l0/0001/", ""), ("l0/0001/", name(5, 199))]
    measures = site.collector.measures
    assert (measures.listed, measures.deleted, measures.lists, measures.sweeps) == (2_000, 1_400, 2, 1)


def test_a_newer_epoch_is_needed_while_there_are_objects_above_the_bound(site: Site) -> None:
    def needed() -> bool:
        answer: bool = site.run(site.asked(1, []))
        return answer

    assert needed(), "nothing was looked at yet"
    site.store.add([name(4), name(9), name(3, shard=2)])
    site.m = 5
    site.sweep()
    assert needed()
    site.m = 9
    assert needed(), "until it was swept"
    site.sweep()
    assert not needed()
    site.written = 10
    assert needed()
    site.m = 10
    site.sweep()
    assert not needed()
    site.store.add([name(11, shard=3, node=3)])
    site.log.do(FenceNode(3, site.machine.nodes[3].heard_index, 0))
    site.sweep()
    assert needed(), "of a node that is not there any more"
    site.m = 12
    site.store.add([name(13)])
    site.sweep()
    assert site.collector.shards() == [1, 3]
    assert needed(), "also when the other shard is empty"


@pytest.mark.parametrize("pages", [4, 0.5])
def test_a_sweep_that_is_paused_does_not_know_what_it_left(site: Site, pages: float) -> None:
    """Neither behind the page at which it stopped, nor in the shards that it did not come to."""
    site.store.add([name(1 + n // PAGE, n) for n in range(int(pages * PAGE))])
    site.log.do(FenceNode(3, site.machine.nodes[3].heard_index, 0))

    async def paused(_: Sequence[str]) -> None:
        site.registered = False

    site.store.on_delete = paused
    site.m = 9
    site.sweep()
    site.registered = True
    assert site.collector.needs_newer_epoch


def test_while_m_stays_nothing_is_listed_but_now_and_then_from_the_front(site: Site) -> None:
    site.store.add([name(9)])
    site.m = 5
    site.start()
    assert len(site.sweeps()) == 1
    late = name(2, 77)
    site.store.add([late])
    site.pass_time(FULL_SWEEP_SECONDS - 1)
    assert len(site.sweeps()) == 1
    site.pass_time(11)
    assert len(site.sweeps()) == 2
    assert site.store.deleted == [late], "an upload that landed after its epoch was collected"
    site.m = 6
    site.pass_time(10)
    assert len(site.sweeps()) == 3


def test_before_anything_may_go_nothing_is_listed(site: Site) -> None:
    site.start()
    site.pass_time(FULL_SWEEP_SECONDS)
    assert not site.store.lists


def test_names_of_others_are_never_deleted_and_not_read_again_and_again(site: Site) -> None:
    foreign = [f"l0/0001/0000-{n:05}" for n in range(3 * PAGE)] + ["l0/0001/00000000000000000003/1-XY"]
    behind = ["l0/0001/00000000000000000004x", "l0/0001/zzz"]
    site.store.add([*foreign, *behind, name(3), name(4), name(9), "l0/0001/00000000000000000004/notes"])
    site.m = 4
    site.sweep()
    assert site.store.deleted == [name(3), name(4)]
    assert len(site.sweeps()) == 4
    assert site.collector.measures.foreign == 3 * PAGE + 3
    site.m = 5
    site.store.lists.clear()
    site.sweep()
    assert site.store.lists == [("l0/0001/", foreign[3 * PAGE - 1])], "behind what is not ours"
    site.m = 9
    site.store.lists.clear()
    site.sweep()
    assert site.store.lists == [("l0/0001/", behind[0])]
    assert site.store.deleted == [name(3), name(4), name(9)]
    site.collector.reset()
    site.store.add([name(1)])
    site.sweep()
    assert name(1) not in site.store.names
    assert site.store.names == sorted([*foreign, *behind, "l0/0001/00000000000000000004/notes"])


def test_only_what_lies_in_front_of_all_objects_is_skipped(site: Site) -> None:
    site.store.add([name(1), *(f"l0/0001/{1:020d}x{n:04}" for n in range(2 * PAGE)), name(9)])
    site.m = 4
    site.sweep()
    site.store.add([name(1, 7)])
    site.m = 5
    site.sweep()
    assert site.store.deleted == [name(1), name(1, 7)]


def test_what_lands_before_names_of_others_is_found_by_a_full_sweep(site: Site) -> None:
    site.store.add([f"l0/0001/{5:020d}x", name(9)])
    site.m = 4
    site.start()
    site.store.add([name(3)])
    site.m = 5
    site.pass_time(FULL_SWEEP_SECONDS - 5)
    assert not site.store.deleted
    site.pass_time(20)
    assert site.store.deleted == [name(3)]


@pytest.mark.parametrize(
    "almost",
    [
        "l0/0001/1/1-" + "0" * 32, name(1)[:-1], name(1) + "0", name(1).upper(), name(1) + "/x",
        name(1).replace("/1-", "/0-"), name(1).replace("/1-", "/01-"), name(1).replace("/1-", "/70000-"),
        name(1)[:-1] + "g", "l0/0001/" + name(1),
    ],
)  # fmt: skip
def test_what_looks_like_a_name_and_is_none_stays(site: Site, almost: str) -> None:
    site.store.add([almost, name(1), name(2)])
    site.m = 5
    site.sweep()
    assert site.store.names == [almost]


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3)), max_size=40),
    st.lists(st.text("0159/-x", min_size=1, max_size=24).filter(lambda t: t[0] in "0159x"), max_size=10),
    st.lists(st.integers(0, 12), min_size=1, max_size=4),
)
@settings(max_examples=60, deadline=None)
def test_exactly_what_the_bound_allows(ours: list[tuple[int, int]], others: list[str], ms: list[int]) -> None:
    site = Site()
    names = {name(epoch, n) for epoch, n in ours}
    foreign = {f"l0/0001/{other}" for other in others} - names
    with site.world:
        site.store.add([*names, *foreign, name(1, shard=2)])
        for m in sorted(ms):
            site.m = m
            site.sweep()
            kept = {one for one in names if parse_object_name(one).epoch > m}
            assert site.store.names == sorted([*kept, *foreign, name(1, shard=2)])


def test_hundreds_of_thousands_go_at_the_rate_and_in_pieces(site: Site) -> None:
    site.store.add([name(1 + n // 20_000, n) for n in range(80_000)])
    site.m = 50
    began = site.world.now
    site.start()
    site.pass_time(40.0)
    assert abs(len(site.store.deleted) - 40_000) <= 2_000
    site.world.run_until(lambda: not site.store.names, timeout=200.0)
    assert 78.0 <= site.world.now - began <= 90.0
    assert max(map(len, site.store.deletions)) == MAX_DELETE
    assert len(site.store.lists) <= 82


def test_a_slow_rate_is_kept_within_a_page() -> None:
    site = Site(rate=10)
    with site.world:
        site.store.add([name(1, n) for n in range(95)])
        site.m = 5
        site.start()
        site.pass_time(4.5)
        assert [len(batch) for batch in site.store.deletions] == [10] * 5
        site.pass_time(10.0)
        assert not site.store.names


def test_m_counts_once_the_grace_is_over() -> None:
    site = Site(grace=60.0)
    with site.world:
        site.store.add([name(1), name(5), name(7)])
        site.m = 5
        site.start()
        site.pass_time(31.0)
        site.m = 9
        site.pass_time(24.0)
        assert not site.store.deleted
        site.pass_time(10.0)
        assert site.store.deleted == [name(1), name(5)]
        site.pass_time(40.0)
        assert site.store.deleted == [name(1), name(5), name(7)]


def test_a_bound_that_rises_during_a_sweep_is_used() -> None:
    """A sweep may take as long as there is much to delete."""
    site = Site(rate=100)
    with site.world:
        site.store.add([name(epoch, n) for epoch in range(1, 11) for n in range(500)])
        site.m = 3
        site.start()
        site.pass_time(5.0)
        site.m = 10
        site.pass_time(50.0)
        assert len(site.store.names) == 0


# Pausing.


def test_paused_it_deletes_nothing_and_resumed_it_goes_on(site: Site) -> None:
    site.store.add([name(1, n) for n in range(3_500)])
    site.m = 5
    site.start()
    site.pass_time(1.5)
    assert len(site.store.deleted) == 2_000
    site.log.do(SetCollection(True))
    site.pass_time(FULL_SWEEP_SECONDS / 2)
    assert len(site.store.deleted) == 2_000
    assert len(site.sweeps()) <= 3, "nor does it list"
    site.log.do(SetCollection(False))
    site.pass_time(20)
    assert not site.store.names
    assert site.collector.measures.sweeps >= 1


def test_it_waits_until_the_controllers_replica_has_caught_up(site: Site) -> None:
    site.registered = False
    site.store.add([name(1)])
    site.m = 5
    site.start()
    site.pass_time(50)
    assert not site.store.lists
    assert site.collector.status()["waiting"]
    site.registered = True
    site.pass_time(10)
    assert not site.store.names


# Faults.


def test_a_store_that_fails_is_asked_ever_more_seldom_and_made_good(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.store.add([name(1), name(9)])
    site.m = 5
    failing: list[StoreError] = [NotDone("list", "l0/", "it is down", retriable=True) for _ in range(8)]
    site.store.fail["list"] = failing
    site.start()
    due = site.world.now
    for left, pause in zip(range(6, -1, -1), (20, 40, 80, 160, MAX_PAUSE_SECONDS, 300, 300), strict=True):
        due += pause
        site.world.run(due - 0.1)
        assert len(failing) == left + 1
        site.world.run(due + 0.1)
        assert len(failing) == left
    assert site.status("last_error") == "list l0/: it is down"
    assert site.collector.measures.errors == 8
    site.pass_time(MAX_PAUSE_SECONDS + 1)
    assert site.store.deleted == [name(1)]
    assert site.status("last_error") is None
    assert [record.levelname for record in caplog.records if "collector" in record.name] == ["WARNING"]


def test_a_deletion_that_nobody_answered_is_repeated(site: Site) -> None:
    site.store.add([name(1), name(2)])
    site.m = 5
    site.store.stale = [name(1), name(2)]
    site.store.fail["delete"] = [OutcomeUnknown("delete", name(1), "no answer")]
    site.start()
    assert site.collector.measures.deleted == 0
    site.pass_time(25)
    assert site.store.deletions == [[name(1), name(2)]] * 2
    assert site.collector.measures.deleted == 2


def test_a_listing_that_is_late_delays_and_harms_nothing(site: Site) -> None:
    site.m = 5
    site.store.add([name(1), name(6)])
    site.store.stale = []
    site.sweep()
    assert not site.store.deleted
    site.store.stale = [name(1), name(6)]
    site.collector.reset()
    site.sweep()
    site.collector.reset()
    site.sweep()
    assert site.store.deletions == [[name(1)], [name(1)]], "listed although it is gone"
    assert site.store.names == [name(6)]


def test_a_shard_that_cannot_be_listed_does_not_end_collecting_for_good(site: Site) -> None:
    site.log.do(FenceNode(2, site.machine.nodes[2].heard_index, 1_000))
    site.store.add([name(1), name(1, shard=2)])
    site.m = 5
    site.store.fail["list"] = [NotDone("list", "l0/0001/", "it is down", retriable=True)]
    site.start()
    site.pass_time(25)
    assert not site.store.names


@pytest.mark.parametrize("where", [0, PAGE - 1])
def test_names_of_epochs_to_come_are_another_clusters_or_of_a_log_that_was_lost(
    site: Site, where: int, caplog: pytest.LogCaptureFixture
) -> None:
    site.store.add([name(3), name(100), *(f"l0/0001/{100:020d}x{n:04}" for n in range(where)), name(101)])
    site.store.add([f"l0/0001/{100:020d}0", "l0/0001/zzz"])
    site.m = 5
    site.start()
    assert "is of epoch 101, and this cluster is at 100: another cluster uses this" in str(
        site.collector.broken
    )
    site.pass_time(FULL_SWEEP_SECONDS + 20)
    assert not site.store.deletions
    assert [record.levelname for record in caplog.records] == ["CRITICAL"]
    site.log.do(AdvanceClusterEpoch(101))
    site.node.call(site.collector.reset)
    site.pass_time(1)
    assert site.store.deleted == [name(3)]


def test_an_epoch_that_is_heard_of_before_the_controllers_replica_has_it_is_no_strangers(site: Site) -> None:
    """Objects are named by the newest epoch that was heard of."""
    # It moves on while the names are listed.
    epochs = iter([119, 120])
    site.collector._newest_epoch = lambda: next(epochs)
    site.store.add([name(3), name(110), name(120), name(500, shard=2)])
    site.m = 5
    site.start()
    assert site.collector.broken is None
    assert site.store.deleted == [name(3)]


def test_what_should_be_impossible_stops_it_until_it_is_reset(site: Site) -> None:
    reported: list[Any] = []
    cast(Any, site.node.loop).call_exception_handler = reported.append
    site.store.add([name(1), name(5)])
    site.m = 8
    site.sweep()
    site.m = 7
    site.store.add([name(6)])
    site.start()
    assert "while M is 7" in str(site.collector.broken)
    assert len(reported) == 1
    site.m = 9
    site.pass_time(FULL_SWEEP_SECONDS)
    assert site.store.names == [name(6)]
    site.node.call(site.collector.reset)
    site.pass_time(1)
    assert site.collector.broken is None
    assert not site.store.names


def test_deleting_looks_at_each_name_once_more(site: Site) -> None:
    site.m = 5
    site.run(_turn(site.collector))
    for names, bound in (
        ([name(1), name(6)], 5),
        ([name(1), name(1) + "x"], 5),
        ([name(1, shard=2)], 5),
        ([name(6)], 6),
    ):
        with pytest.raises((AssertionError, ValueError)):
            site.run(site.collector._delete(names, 1, bound))
    assert not site.store.deletions
    site.run(site.collector._delete([name(5)], 1, 5))
    assert site.store.deleted == [name(5)]


async def _turn(collector: Collector) -> None:
    await collector._turn()


def test_a_listing_that_does_not_move_on_ends_the_sweep(site: Site) -> None:
    async def same(prefix: str, after: str, limit: int) -> list[str]:
        return [name(1, n) for n in range(PAGE)]

    reported: list[Any] = []
    cast(Any, site.node.loop).call_exception_handler = reported.append
    site.store.list = same  # type: ignore[method-assign]
    site.m = 5
    site.start()
    site.pass_time(5)
    assert "behind" in str(site.collector.broken)


def test_stopping_waits_for_no_rate_and_nothing_follows() -> None:
    site = Site(rate=1)
    with site.world:
        site.store.add([name(1, n) for n in range(100)])
        site.m = 5
        site.start()
        site.pass_time(2.5)
        began = site.world.now
        site.run(site.collector.close())
        assert site.world.now - began < 0.1
        gone = len(site.store.deleted)
        site.pass_time(1_000)
        assert len(site.store.deleted) == gone == 3
        site.collector.reset()
        site.pass_time(1_000)
        assert len(site.store.deleted) == gone


def test_two_collectors_of_one_shard_harm_nothing() -> None:
    one, other = Site(rate=50), Site(rate=70)
    other.store = one.store
    other.collector._store = one.store
    with one.world, other.world:
        one.store.add([name(1 + n % 9, n) for n in range(600)])
        one.m, other.m = 6, 4
        one.start()
        other.start()
        for _ in range(40):
            one.pass_time(0.5)
            other.pass_time(0.5)
        assert sorted(set(one.left())) == [7, 8, 9]


# Shards.


def test_shards_of_nodes_that_are_not_alive_are_shared_out() -> None:
    site = Site(nodes=(1, 2, 3, 4, 9))
    with site.world:
        for node in (4, 5, 6):
            site.log.do(registration(node))

        def shards() -> dict[int, list[int]]:
            found = {}
            for node in (1, 2, 3, 4, 5, 6):
                site.collector._node = node
                found[node] = site.collector.shards()
            return found

        assert shards() == {1: [1, 9], 2: [2], 3: [3], 4: [4], 5: [5], 6: [6]}
        for node in (2, 4, 5):
            site.log.do(FenceNode(node, site.machine.nodes[node].heard_index, 1_000))
        assert shards() == {1: [1, 2, 9], 2: [2], 3: [3, 4], 4: [4], 5: [5], 6: [6, 5]}
        assert sorted(n for node in (1, 3, 6) for n in shards()[node]) == [1, 2, 3, 4, 5, 6, 9]


def test_a_dead_nodes_shard_is_collected_as_soon_as_it_is_known(site: Site) -> None:
    site.store.add([name(1, shard=2), name(3, shard=3)])
    site.m = 5
    site.start()
    assert len(site.store.names) == 2
    site.log.do(FenceNode(2, site.machine.nodes[2].heard_index, 1_000))
    site.pass_time(10)
    assert site.store.names == [name(3, shard=3)], "though M did not move"


# To be seen.


def test_a_dry_run_shows_what_would_go_and_deletes_nothing(site: Site) -> None:
    site.log.do(FenceNode(2, site.machine.nodes[2].heard_index, 1_000))
    site.store.add([name(1 + n // 1_000, n) for n in range(3_000)] + [name(1, shard=2), "l0/0001/00x"])
    site.m = 2
    found = site.run(site.collector.dry_run(5_000))
    assert found[:2] == (2, {1: 2_000, 2: 1})
    assert (len(found.names), found.more) == (2_001, False)
    few = site.run(site.collector.dry_run(1_500))
    assert (few.objects, len(few.names), few.more) == ({1: 1_500, 2: 0}, 1_500, True)
    assert not site.store.deletions
    site.log.do(SetCollection(True))
    assert site.run(site.collector.dry_run()).more


def test_the_status_says_how_far_it_is_behind(site: Site) -> None:
    site.m = 99
    site.store.add([name(100)])
    site.start()
    assert site.collector.lag_epochs == 0
    site.log.do(AdvanceClusterEpoch(103))
    site.pass_time(10)
    site.pass_time(30)
    status = site.collector.status()
    assert (status["bound"], status["lag_epochs"], status["paused"]) == (99, 3, False)
    assert 25 <= status["lag_seconds"] <= 40
    site.m = 100
    site.pass_time(10)
    status = site.collector.status()
    assert (status["lag_epochs"], status["lag_seconds"]) == (2, 0), "nothing that is left has these epochs"
    assert status["shards"] == [1]


def test_reset_begins_anew(site: Site) -> None:
    site.store.add([name(1), name(2)])
    site.m = 5
    site.start()
    assert site.collector.measures.deleted == 2
    site.store.add([name(3)])
    site.node.call(site.collector.reset)
    site.pass_time(0.5)
    assert site.collector.measures.deleted == 1
    assert not site.store.names
    assert asyncio.iscoroutinefunction(site.collector.close)
