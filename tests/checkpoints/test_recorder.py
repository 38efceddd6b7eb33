"""What a replica remembers between two checkpoints, and what of it comes to be published."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from strandline.node.checkpoints.recorder import CheckpointPlace, TailBudget
from strandline.node.checkpoints.recorders import CheckpointRecorders
from strandline.snapshot.document import decode
from strandline.snapshot.log_document import LogDocument, decode_log
from strandline.snapshot.names import LogName, SnapshotName, checkpoint_prefix, parse_name
from strandline.statemachine.partition.partition import PartitionStateMachine
from tests.checkpoints.harness import CLUSTER, GROUP, VOTERS, Replica, node_and_store, publisher, world
from tests.simulation.store import SimStore


def documents(store: SimStore) -> dict[tuple[int, int], bytes]:
    """What is stored, by index and node."""
    names = [(name, parse_name(name)) for name in store.keys()]  # noqa: SIM118
    return {(n.log_index, n.node): store.objects[name] for name, n in names if isinstance(n, SnapshotName)}


def logs(store: SimStore) -> dict[tuple[int, int], LogDocument]:
    """What is stored, by the indexes it lies between."""
    names = [(name, parse_name(name)) for name in store.keys()]  # noqa: SIM118
    return {
        (n.after, n.log_index): decode_log(store.objects[name]) for name, n in names if isinstance(n, LogName)
    }


def replayed(log: LogDocument, machine: PartitionStateMachine) -> bytes:
    for index, term, given in log.read():
        if isinstance(given, int):
            machine.begin_term(index, term, given)
        else:
            machine.apply(index, term, given)
    return machine.snapshot()


def test_a_checkpoint_publishes_its_state_and_the_log_that_leads_there() -> None:
    with world() as made:
        node, store = node_and_store(made)
        replica = Replica(publisher(node, store))
        replica.begin_term(1)
        replica.write()
        first = replica.checkpoint()
        replica.write()
        replica.begin_term(4)
        replica.write()
        second = replica.checkpoint()
        assert replica.budget.used == 0
        made.run(made.now + 5)

        assert sorted(documents(store)) == [(first, 1), (second, 1)]
        document = decode(documents(store)[second, 1])
        assert (document.cluster, document.kind, document.group) == (CLUSTER, "partition", GROUP)
        assert (document.index, document.term, document.voters) == (second, 4, VOTERS)
        assert document.state == replica.machine.snapshot()

        assert sorted(logs(store)) == [(0, first), (first, second)]
        machine = PartitionStateMachine(1, lambda index, state: None)
        assert replayed(logs(store)[0, first], machine) == decode(documents(store)[first, 1]).state
        assert replayed(logs(store)[first, second], machine) == document.state
        assert all(name.startswith(checkpoint_prefix(CLUSTER, GROUP, first)) for name in store.keys()[:2])


def test_the_same_entries_applied_again_after_a_restart_publish_the_same_bytes() -> None:
    with world() as made:
        node, store = node_and_store(made)
        before = Replica(publisher(node, store))
        before.begin_term(1)
        before.write()
        snapshot = before.index, before.machine.snapshot()
        before.write()
        first = before.checkpoint()
        made.run(made.now + 5)
        published = dict(store.objects)

        # The log above the snapshot is applied anew, the checkpoint's entry with it.
        after = Replica(publisher(node, store))
        after.restore(*snapshot)
        after.write()
        assert after.checkpoint() == first
        made.run(made.now + 5)
        assert store.requests["put"] == 3  # document and log, and the document again
        assert store.objects == published  # the store itself fails a run that overwrites with other bytes

        after.write()
        second = after.checkpoint()
        made.run(made.now + 5)
        assert (first, second) in logs(store)


def test_a_restored_snapshot_ends_the_tail_until_the_next_checkpoint() -> None:
    with world() as made:
        node, store = node_and_store(made)
        leader = Replica(publisher(node, store))
        leader.begin_term(1)
        leader.write()
        leader.checkpoint()
        leader.write()
        made.run(made.now + 5)
        store.objects.clear()

        lagging = Replica(publisher(node, store))
        lagging.begin_term(1)
        lagging.restore(leader.index, leader.machine.snapshot())
        assert (lagging.recorder.whole, lagging.budget.used) == (False, 0)
        first = lagging.checkpoint()
        lagging.write()
        second = lagging.checkpoint()
        made.run(made.now + 5)
        assert sorted(documents(store)) == [(first, 1), (second, 1)]
        assert list(logs(store)) == [(first, second)]


def test_a_tail_over_the_budget_is_given_up_and_the_next_one_is_whole() -> None:
    with world() as made:
        node, store = node_and_store(made)
        budget = TailBudget(500)
        to = publisher(node, store)
        big, small = Replica(to, budget), Replica(to, budget, group=8)
        for replica in (big, small):
            replica.begin_term(1)
            replica.write()
        big.write(bytes(600))
        assert (big.recorder.whole, small.recorder.whole) == (False, True)
        assert (budget.overflows, budget.used) == (1, len(small.recorder._tail))
        big.write()
        small.write()
        first = big.checkpoint()
        small.checkpoint()
        big.write()
        second = big.checkpoint()
        made.run(made.now + 5)
        assert sorted(name for name in store.keys() if "log-" in name) == [  # noqa: SIM118
            f"{checkpoint_prefix(CLUSTER, GROUP, second)}log-{first:020d}",
            f"{checkpoint_prefix(CLUSTER, 8, small.index)}log-{0:020d}",
        ]
        assert len(documents(store)) == 3
        assert budget.used == 0


def test_a_replica_that_goes_gives_its_bytes_back() -> None:
    with world() as made:
        node, store = node_and_store(made)
        replica = Replica(publisher(node, store))
        replica.begin_term(1)
        replica.write()
        assert replica.budget.used > 0
        replica.recorder.close()
        replica.recorder.close()
        assert replica.budget.used == 0
        replica.write()
        assert replica.budget.used == 0


def test_a_replica_that_does_not_know_the_members_leaves_the_checkpoint_to_the_others() -> None:
    with world() as made:
        node, store = node_and_store(made)
        voters: tuple[int, ...] = ()
        replica = Replica(publisher(node, store), place=lambda index: CheckpointPlace(1, voters, ()))
        replica.begin_term(1)
        first = replica.checkpoint()
        voters = (1, 2)
        second = replica.checkpoint()
        made.run(made.now + 5)
        assert sorted(documents(store)) == [(second, 1)]
        assert list(logs(store)) == [(first, second)]


def test_a_checkpoint_whose_entry_was_not_recorded_is_a_defect() -> None:
    with world() as made:
        node, store = node_and_store(made)
        replica = Replica(publisher(node, store))
        replica.begin_term(1)
        with pytest.raises(ValueError, match="checkpoint at entry 2 while entry 1"):
            replica.recorder.checkpoint(2, lambda: b"state")


def test_only_a_checkpoint_that_this_node_cannot_have_taken_before_is_told_as_new() -> None:
    """Nor is one told while that is unknown; what the log had when it was opened does not matter."""
    with world() as made:
        to = publisher(*node_and_store(made))
        journal = SimpleNamespace(last=0, term_at=lambda index: 1)
        members = SimpleNamespace(at=lambda index: SimpleNamespace(voters=VOTERS, learners=()))
        group: Any = SimpleNamespace(journal=journal, configuration_log=members, committed_before=None)
        told: list[tuple[int, int]] = []
        host: Any = SimpleNamespace(groups={GROUP: group})
        recorders = CheckpointRecorders(CLUSTER, host, to, lambda *place: told.append(place))
        recorder = recorders.make(GROUP, "partition")
        for index, before in ((2, None), (3, 4), (4, 4), (5, 4)):
            group.committed_before = before
            recorder.applied(index, 1, b"entry")
            recorder.checkpoint(index, lambda: b"state")
        assert told == [(GROUP, 5)]
        recorders.forget(GROUP)
        assert GROUP not in recorders
