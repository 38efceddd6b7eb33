"""When leaders put the minimum into the log, and what keeps them from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.node.compaction.distribution import DELAY_SECONDS
from strandline.node.compaction.removal_leader import ADVANCE_SECONDS, AT_ONCE, SeenOpen
from strandline.node.compaction.removal_minimum import LEVEL_ONE, Ends
from strandline.node.controller.leaders import Leader
from strandline.node.raft.configuration import Configuration
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.partition.partition_commands import AdvanceRemoval, RemovalAdvanced
from strandline.statemachine.partition.rejection import Rejected, Rejection
from tests.compaction.removal_nodes import Post, RemovalNode, Replica
from tests.level_zero.samples import started
from tests.simulation.world import World

RETENTION = 60_000


class Site:
    """Node 1 leads partitions with replicas on 1, 2 and 3, whose logs are clean to 10; level one as well."""

    def __init__(self, world: World, groups: int = 1) -> None:
        self.world, self.post, self.sim = world, Post(), started(world)
        self.nodes = {node: RemovalNode(self.post, node, self.sim.loop) for node in (1, 2, 3)}
        self.results: list[Any] = []
        for node in self.nodes.values():
            node.configs["delete.retention.ms"] = str(RETENTION)
            for group in range(1, groups + 1):
                replica = node.replicas[group] = Replica(group)
                replica.on_execute = self.applied(replica)
                replica.machine.removals.published(10, 20)
                node.disk[group] = Ends(10, 20)
                node.leaders[group] = Leader(1, 1)
        for one, other in ((1, 2), (1, 3), (2, 3)):
            self.post.connect(one, other)
        for replica in self.node.replicas.values():
            replica.leads = True
        self.sim.call(self.node.leader.start)

    @property
    def node(self) -> RemovalNode:
        return self.nodes[1]

    @property
    def replica(self) -> Replica:
        return self.node.replicas[1]

    @property
    def executed(self) -> list[Any]:
        return self.replica.executed

    def applied(self, replica: Replica) -> Callable[[Any], Coroutine[Any, Any, Any]]:
        async def execute(command: AdvanceRemoval) -> Any:
            await asyncio.sleep(0.01)
            if self.results:
                return self.results.pop(0)
            removals = replica.machine.removals
            time = 0 if self.node.now_ms is None else self.node.now_ms
            if not removals.advance(command.mtro, command.mxro, command.retention, time):
                return Rejected(Rejection.REMOVAL_NOT_NEWER, removals.mtro)
            return RemovalAdvanced(
                removals.mtro, removals.mxro, removals.ripe_tombstones, removals.ripe_markers
            )

        return execute

    def report(self, *nodes: int) -> None:
        for node in nodes or (2, 3):
            self.nodes[node].look(everything=True)
        self.post.deliver_all()

    def run(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)

    def clean(self, end: int) -> None:
        """All copies get clean to there."""
        for node in self.nodes.values():
            for group in node.disk:
                node.disk[group] = Ends(end, 2 * end)
                node.replicas[group].machine.removals.published(end, 2 * end)


def test_nothing_is_proposed_until_every_member_has_reported() -> None:
    with World(1) as world:
        site = Site(world)
        site.run(60)
        site.report(2)
        site.run(60)
        assert site.executed == []
        led = site.node.leader.led(1)
        assert led is not None
        assert set(led.tombstones_held) == set(led.markers_held) == {3}
        site.report(3)
        site.run(DELAY_SECONDS + 2)
        assert site.executed == [AdvanceRemoval(10, 20, RETENTION)]
        assert led.error is None
        site.run(60)
        assert len(site.executed) == 1
        world.check()


def test_a_learner_counts_from_the_entry_that_names_it() -> None:
    with World(1) as world:
        site = Site(world)
        site.report()
        site.replica.group.configuration = Configuration(9, (1, 2, 3), (4,))
        site.run(30)
        assert site.executed == []
        site.replica.group.configuration = Configuration(12, (1, 2, 3))
        site.run(30)
        assert len(site.executed) == 1


def test_changes_travel_together_and_keep_their_distance() -> None:
    with World(1) as world:
        site = Site(world)
        site.report()
        site.run(2.0)
        site.clean(30)
        site.report()
        site.run(20)
        assert site.executed == [AdvanceRemoval(30, 60, RETENTION)]
        for end in range(31, 91):
            site.clean(end)
            site.report()
            site.run(1)
        assert 14 <= len(site.executed) - 1 <= 21, (
            "one in three or four seconds: a 24th of a minute after a look"
        )


def test_rows_ripen_on_a_partition_that_stands_still_also_without_a_member() -> None:
    with World(1) as world:
        site = Site(world)
        site.report()
        site.run(10)
        assert site.replica.machine.removals.waiting == [(10, 20, 0)]
        site.post.disconnect(1, 3)
        site.node.now_ms = RETENTION - 1
        site.run(60)
        assert len(site.executed) == 1
        site.node.now_ms = RETENTION
        site.run(2)
        assert site.executed[1:] == [AdvanceRemoval(10, 20, RETENTION)]
        assert site.replica.machine.removals.ripe_tombstones == 10
        site.run(60)
        assert len(site.executed) == 2


def test_while_the_nodes_do_not_agree_on_the_time_nothing_is_proposed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with World(1) as world:
        site = Site(world)
        site.report()
        site.node.now_ms = None
        site.run(60)
        assert site.executed == []
        assert caplog.text.count("too few nodes agree on the time") == 1
        site.node.now_ms = 5
        site.run(DELAY_SECONDS + 2)
        assert len(site.executed) == 1


def test_a_topic_without_the_policy_and_a_replica_that_does_not_lead_propose_nothing() -> None:
    with World(1) as world:
        site = Site(world)
        site.report()
        site.node.configs["cleanup.policy"] = "delete"
        site.run(60)
        assert site.executed == []
        assert site.node.leader.led(1) is None
        site.node.configs["cleanup.policy"] = "compact,delete"
        site.run(1)
        assert site.node.leader.led(1) is not None
        site.replica.leads = False
        site.run(60)
        assert site.executed == []
        assert site.node.leader.led(1) is None
        site.replica.leads = True
        site.run(DELAY_SECONDS + 2)
        assert len(site.executed) == 1


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (Refusal(Reason.UNDECIDED, "the leadership was lost"), "the leadership was lost"),
        (Refusal(Reason.NOT_LEADER), "NOT_LEADER"),
        (Rejected(Rejection.REMOVAL_NOT_NEWER, 0), "REMOVAL_NOT_NEWER"),
    ],
)
def test_after_an_outcome_that_is_none_it_is_computed_again_soon(result: Any, told: str) -> None:
    with World(1) as world:
        site = Site(world)
        site.results = [result]
        site.report()
        site.run(DELAY_SECONDS + 2)
        led = site.node.leader.led(1)
        assert led is not None
        assert told in (led.error or "")
        site.clean(12)
        site.report()
        site.run(DELAY_SECONDS + 2)
        assert site.executed == [AdvanceRemoval(10, 20, RETENTION), AdvanceRemoval(12, 24, RETENTION)]
        assert led.error is None


def test_an_entry_that_came_into_force_after_all_leaves_no_error() -> None:
    with World(1) as world:
        site = Site(world)
        site.results = [Refusal(Reason.UNDECIDED, "the leadership was lost")]
        site.report()
        site.run(DELAY_SECONDS + 2)
        led = site.node.leader.led(1)
        assert led is not None
        assert "the leadership was lost" in (led.error or "")
        site.replica.machine.removals.advance(10, 20, RETENTION, 0)
        site.run(2)
        assert led.error is None
        assert len(site.executed) == 1


def test_a_log_that_does_not_answer_is_not_waited_for() -> None:
    with World(1) as world:
        site = Site(world)
        site.report()

        async def never(command: AdvanceRemoval) -> None:
            await asyncio.get_running_loop().create_future()

        site.replica.on_execute = never
        site.run(DELAY_SECONDS + ADVANCE_SECONDS + 3)
        led = site.node.leader.led(1)
        assert led is not None
        assert "did not answer within 10 s" in (led.error or "")
        site.run(60)
        assert 6 <= len(site.executed) <= 9, "one at a time"


def test_a_new_term_begins_with_the_words_of_that_term() -> None:
    with World(1) as world:
        site = Site(world)
        site.report()
        site.run(1)
        site.replica.leader_epoch = 2
        site.run(60)
        assert site.executed == []
        for node in site.nodes.values():
            node.leaders[1] = Leader(1, 2)
        site.report()
        site.run(DELAY_SECONDS + 2)
        assert len(site.executed) == 1


def test_what_is_proposed_is_what_is_known_when_it_is_proposed() -> None:
    """Between the look and the entry a connection may be lost, or a replica may lose its log."""
    with World(1) as world:
        site = Site(world)
        site.report()
        begin = site.node.leader._begin

        def lost_in_between(replica: Any, led: Any) -> None:
            begin(replica, led)
            site.post.disconnect(1, 2)

        site.node.leader._begin = lost_in_between  # type: ignore[method-assign]
        site.run(DELAY_SECONDS + 3)
        assert site.executed == [AdvanceRemoval(0, 0, RETENTION)]
        assert site.replica.machine.removals.mtro == 0


def test_it_is_known_which_copies_hold_back_what_and_since_when() -> None:
    with World(1) as world:
        site = Site(world)
        site.report()
        site.run(2)
        led = site.node.leader.led(1)
        assert led is not None
        assert (led.tombstones_held, led.markers_held) == ({}, {})
        for node, ends in ((1, Ends(15, 40)), (2, Ends(10, 40)), (3, Ends(15, 40))):
            site.nodes[node].disk[1] = ends
        site.report()
        site.run(2)
        since = world.now
        assert (set(led.tombstones_held), set(led.markers_held)) == ({LEVEL_ONE, 2}, {LEVEL_ONE})
        assert since - 2 <= led.tombstones_held[2] == led.markers_held[LEVEL_ONE] <= since
        site.run(60)
        site.replica.machine.removals.published(12, 20)
        site.run(2)
        assert (set(led.tombstones_held), set(led.markers_held)) == ({2}, {LEVEL_ONE})
        assert led.markers_held[LEVEL_ONE] <= since
        assert led.tombstones_held[2] <= since, "another copy that went on does not begin it anew"
        site.nodes[2].disk[1] = Ends(12, 40)
        site.report()
        site.run(2)
        assert set(led.tombstones_held) == {LEVEL_ONE, 2}
        assert led.tombstones_held[LEVEL_ONE] >= since + 60, "it held nothing back meanwhile"


def test_it_is_known_which_transaction_is_the_earliest_open_one_and_since_when() -> None:
    with World(1) as world:
        site = Site(world)

        def seen() -> SeenOpen | None:
            site.run(2)
            led = site.node.leader.led(1)
            assert led is not None
            return led.open_transaction

        assert seen() is None
        producers = site.replica.machine.producers = SimpleNamespace()
        producers.first_open_producer, producers.first_open_offset = 4_000, 17
        first = seen()
        assert first is not None
        assert first[:2] == (4_000, 17)
        site.run(60)
        assert seen() == first
        producers.first_open_offset = 18  # the producer's next one
        second = seen()
        assert second is not None
        assert second.since >= first.since + 60
        producers.first_open_producer = producers.first_open_offset = None
        assert seen() is None


def test_of_very_many_that_are_due_a_bounded_number_is_under_way_and_all_have_their_turn() -> None:
    with World(1) as world:
        site = Site(world, groups=AT_ONCE * 2 + 10)
        under_way = most = 0

        async def slow(command: AdvanceRemoval) -> Any:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(3.0)
            under_way -= 1
            return Refusal(Reason.NOT_NOW, "too much waits")

        for replica in site.node.replicas.values():
            replica.on_execute = slow
        site.report()
        site.run(60)
        assert most == AT_ONCE
        assert min(len(replica.executed) for replica in site.node.replicas.values()) >= 2


def test_one_partition_that_fails_keeps_none_of_the_others_waiting() -> None:
    with World(1) as world:
        site = Site(world, groups=3)
        site.report()
        site.node.replicas[1].machine = None
        errors: list[dict[str, Any]] = []
        site.sim.loop.call_exception_handler = errors.append  # type: ignore[method-assign, assignment]
        site.run(DELAY_SECONDS + 2)
        assert len(site.node.replicas[3].executed) == 1
        assert "removal in table-1 failed" in errors[0]["message"]


def test_it_ends_with_the_node() -> None:
    with World(1) as world:
        site = Site(world)
        site.report()
        site.run(1)
        site.sim.call(site.node.leader.close)
        site.run(60)
        assert site.executed == []
        world.check()
