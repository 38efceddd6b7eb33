"""States as a restored cluster begins with them: nothing that the cluster before counted comes again."""

from __future__ import annotations

from strandline.statemachine.controller import restored_controller
from strandline.statemachine.controller.controller_snapshot import capture, load
from strandline.statemachine.controller.controller_state import (
    REMOVED,
    ControllerState,
    Move,
    NodeFolder,
    PartitionAssignment,
    Replacement,
    Topic,
)
from strandline.statemachine.machine import Captured
from strandline.statemachine.transactions.restored_transactions import resumed
from strandline.statemachine.transactions.transaction_state import PREPARED, Transaction, TransactionState
from strandline.statemachine.transactions.transactions import TransactionsMachine
from tests.statemachine.controller_harness import topic_id
from tests.statemachine.transaction_log import P0, P1, Log


def controller() -> ControllerState:
    state = ControllerState()
    state.cluster_id, state.incarnation, state.cluster_epoch = "harbour", "first", 40
    state.next_group, state.next_producer_id = 3, 5_000
    partitions = (PartitionAssignment(1, (1, 2, 3), 1), PartitionAssignment(2, (3, 1, 2), 1))
    state.put_topic(Topic(topic_id(1), "orders", partitions, {}, 1, 1))
    state.folders = {1: NodeFolder(1, 11), 2: NodeFolder(3, 22), 4: NodeFolder(5, REMOVED)}
    state.moves[2] = Move((3, 1), (1, 2), 5)
    state.replacement = Replacement(2, 22, 0, frozenset({1}), frozenset())
    return state


def test_the_controller_counts_on_above_all_that_was_used() -> None:
    state = controller()
    first = restored_controller.first_producer_id(state, 2)
    restored_controller.move_on(
        state, steps=2, incarnation="second", folders={1: 101, 2: 102, 3: 103}, next_producer_id=first + 7
    )
    assert (state.incarnation, state.cluster_id) == ("second", "harbour")
    assert state.cluster_epoch == 40 + 2 * restored_controller.EPOCHS
    assert state.next_group == 3 + 2 * restored_controller.GROUPS
    assert state.next_producer_id - 7 == first == 5_000 + 2 * restored_controller.PRODUCER_IDS
    assert state.folders == {
        1: NodeFolder(2, 101),
        2: NodeFolder(4, 102),
        3: NodeFolder(1, 103),
        4: NodeFolder(5, REMOVED),
    }, "an id that was removed is given to no other, also after this"
    assert (state.moves, state.replacement) == ({}, None)
    assert state.forgotten_index == 1, "a topic that it does not know is gone"
    assert state.topics[topic_id(1)].partitions[1].replicas == (1, 2)
    assert state.topics[topic_id(1)].partitions[0].replicas == (1, 2, 3)
    assert capture(load(capture(state))) == capture(state)


def test_a_restore_does_not_make_a_forgotten_deletion_known_again() -> None:
    state = controller()
    state.forgotten_index = 7
    restored_controller.move_on(state, steps=1, incarnation="second", folders={}, next_producer_id=1 << 50)
    assert state.forgotten_index == 7


def test_a_restored_cluster_needs_every_node_that_has_a_replica_or_registered() -> None:
    state = controller()
    state.folders[9] = NodeFolder(1, 99)
    assert list(restored_controller.hosts(state)) == [1, 2, 3, 9]


def ignored(index: int, captured: Captured) -> None:
    pass


def rows(state: bytes) -> dict[str, Transaction]:
    machine = TransactionsMachine(ignored)
    machine.restore(state)
    return dict(machine.transactions)


def test_open_transactions_are_aborted_decided_ones_stay_and_all_producers_are_fenced() -> None:
    log = Log()
    of = {name: log.init(name) for name in ("open", "done", "decided")}
    for name, identity in of.items():
        log.add(identity, P0, P1, tid=name)
    for name in ("done", "decided"):
        log.end(of[name], raises=True, tid=name)
    log.complete(1, "done")
    state = log.machine.snapshot()
    before = rows(state)
    after, taken = resumed(state, 1_000)
    assert taken == 3
    found = rows(after)
    assert {one.identity for one in found.values()} == {(1_000 + number, 0) for number in range(3)}
    assert found["open"].state is TransactionState.PREPARE_ABORT
    # Its markers fence the producer in the partitions as well: the epoch is above the producer's.
    assert (found["open"].marker_producer_id, found["open"].marker_epoch) == (
        of["open"].producer_id,
        of["open"].epoch + 1,
    )
    assert found["open"].partitions == before["open"].partitions
    assert found["decided"].state is TransactionState.PREPARE_COMMIT
    assert found["decided"].marker_producer_id == before["decided"].marker_producer_id
    assert found["done"].state is TransactionState.COMPLETE_COMMIT
    assert all(found[name].number == before[name].number for name in before)
    assert [one.state in PREPARED for one in found.values()].count(True) == 2
    assert resumed(state, 1_000) == resumed(state, 1_000)


def test_a_new_group_begins_above_as_many_distances_of_terms_as_its_cluster_has_moved_on() -> None:
    """Whole distances: the groups that a cluster makes within one have the same room for terms."""
    groups, terms = restored_controller.GROUPS, restored_controller.TERMS
    numbers = [0, 1, groups - 1, groups, 2 * groups - 1, 2 * groups]
    assert list(map(restored_controller.earlier_terms, numbers)) == [0, 0, 0, terms, terms, 2 * terms]
