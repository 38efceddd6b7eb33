"""What audits make of coordinators' documents and logs: replayed and compared like all others, not in M."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from strandline.snapshot.document import SnapshotDocument, decode
from strandline.snapshot.log_document import LogDocument, decode_log, pack_entry
from strandline.snapshot.names import SnapshotName, log_name, snapshot_name
from strandline.snapshot.spark.audits.document_audits import STATE_FIELDS
from strandline.snapshot.spark.audits.documents import SCHEMA, document_row, listing
from strandline.snapshot.spark.audits.replay import AGREES, DIFFERS, GroupReplay, new_machine
from strandline.snapshot.spark.audits.transaction_events import Targets
from strandline.snapshot.spark.audits.work import ClusterStorage
from strandline.snapshot.spark.options import SourceError, parse
from strandline.snapshot.spark.views import partition_views
from strandline.snapshot.storage import open_storage
from strandline.statemachine.controller.controller_commands import Bootstrap, CreateInternalTopic
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP, Topic
from strandline.statemachine.coordinator_machine import CoordinatorCheckpoint, CoordinatorMachine, encode
from strandline.statemachine.groups.group_commands import CommitOffsets, PartitionOffset, TopicOffsets
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.internal_topics import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from strandline.statemachine.transactions.transaction_commands import Enlist, InitializeProducer
from strandline.statemachine.transactions.transactions import TransactionsMachine
from tests.spark.stored_cluster import CLUSTER, NODES, Group, StoredCluster
from tests.statemachine.controller_harness import registration, topic_id

ORDERS = topic_id(7)
KINDS = [GroupsMachine, TransactionsMachine]


class Coordinator(Group):
    """A coordinator's group with two checkpoints, and commands before, between and behind them."""

    def __init__(self, cluster: StoredCluster, machine: type[CoordinatorMachine], group: int = 9) -> None:
        super().__init__(cluster, group, [machine(partial(self.captured, node)) for node in NODES], NODES)
        self.begin_term(1, 1)
        for number in range(2):
            self.execute(self.command(number))
            self.execute(CoordinatorCheckpoint())
            self.begin_term(number + 2, 2)
        self.execute(self.command(3))

    def execute(self, command: Any) -> Any:
        self.cluster.now += 1_000
        return self.apply(encode(self.term, self.cluster.now, command))

    def command(self, number: int) -> Any:
        if isinstance(self.machines[0], GroupsMachine):
            offset = PartitionOffset(number, 10 + number, -1, "")
            return CommitOffsets(f"g{number}", "", -1, None, [TopicOffsets(ORDERS, "orders", [offset])])
        if number == 0:
            return InitializeProducer("t", 60_000, -1, -1, 4000)
        return Enlist("t", 4000, 0, [(ORDERS, number)], ["g"])


def replayed(cluster: StoredCluster, group: int = 9) -> dict[int, tuple[str, str | None]]:
    """What replay says of each checkpoint."""
    found = listing(ClusterStorage(open_storage(cluster.url), CLUSTER))
    replay = GroupReplay(
        open_storage(cluster.url),
        [tuple(name) for name in found.documents if name.group == group],
        [tuple(name) for name in found.logs if name.group == group],
        Targets({}),
    )
    return {index: replay.outcome(index)[2:] for index in sorted(replay.names)}


@pytest.mark.parametrize("machine", KINDS)
def test_a_log_leads_from_one_checkpoint_to_the_next(tmp_path: Path, machine: Any) -> None:
    made = Coordinator(StoredCluster(tmp_path), machine)
    assert [list(outcome) for outcome in replayed(made.cluster).values()] == [[AGREES, None]] * 2
    states = [decode_of(made, index).state for index in made.checkpoint_indexes]
    assert states[0] != states[1]


def decode_of(made: Coordinator, index: int, node: int = 1) -> SnapshotDocument:
    return decode((made.cluster.root / snapshot_name(CLUSTER, made.group, index, node)).read_bytes())


@pytest.mark.parametrize("machine", KINDS)
def test_a_state_that_its_log_does_not_give_is_found(tmp_path: Path, machine: Any) -> None:
    made = Coordinator(StoredCluster(tmp_path), machine)
    first, second = made.checkpoint_indexes
    # What one replica published at the second is the state of the first, all of it well formed.
    held, document = decode_of(made, first), decode_of(made, second)
    wrong = SnapshotDocument(CLUSTER, document.kind, made.group, second, document.term, NODES, (), held.state)
    made.cluster.put(snapshot_name(CLUSTER, made.group, second, 3), wrong.encode())
    found = replayed(made.cluster)
    assert found[first] == (AGREES, None)
    outcome, problem = found[second]
    assert outcome == DIFFERS
    assert problem is not None
    assert problem.startswith("node 3: its state differs in ")
    # replicas_agree goes by the documents' digests.
    digests = {
        document_row(open_storage(made.cluster.url), name_of(made, second, node))[0][5] for node in NODES
    }
    assert len(digests) == 2


@pytest.mark.parametrize("machine", KINDS)
def test_a_log_that_lacks_an_entry_is_found(tmp_path: Path, machine: Any) -> None:
    made = Coordinator(StoredCluster(tmp_path), machine)
    first, second = made.checkpoint_indexes
    name = log_name(CLUSTER, made.group, first, second)
    log = decode_log((made.cluster.root / name).read_bytes())
    # The command between the checkpoints becomes one without an effect, under the same index and term.
    entries = [
        pack_entry(entry.log_index, entry.term, entry.given)
        if isinstance(entry.given, int) or entry.log_index == second
        else pack_entry(entry.log_index, entry.term, encode(entry.term - 1, 0, made.command(1)))
        for entry in log.read()
    ]
    made.cluster.put(
        name, LogDocument(CLUSTER, machine.kind, made.group, first, second, b"".join(entries)).encode()
    )
    outcome, problem = replayed(made.cluster)[second]
    assert outcome == DIFFERS
    assert problem is not None


def name_of(made: Coordinator, index: int, node: int) -> SnapshotName:
    return SnapshotName(CLUSTER, made.group, index, node)


@pytest.mark.parametrize("machine", KINDS)
def test_a_row_says_what_all_states_have_and_no_more(tmp_path: Path, machine: Any) -> None:
    made = Coordinator(StoredCluster(tmp_path), machine)
    index = made.checkpoint_indexes[-1]
    row, gone = document_row(open_storage(made.cluster.url), name_of(made, index, 2))
    said = dict(zip(SCHEMA.names[1:], row, strict=True))
    assert not gone
    assert (said["error"], said["kind"], said["voters"]) == (None, machine.kind, [*NODES])
    assert said["state_term"] == decode_of(made, index).term == 2
    # An audit (no_window) holds the fields of a state against those of its machine.
    assert said["state_fields"] == STATE_FIELDS[machine.kind]
    for column in ("max_collectable", "oldest_named", "retained", "next_offset", "partitions"):
        assert said[column] is None, column


def test_of_any_other_kind_there_is_no_machine() -> None:
    assert set(STATE_FIELDS) == {"partition", "controller", "groups", "transactions"}
    with pytest.raises(KeyError):
        new_machine("harbours", 0)


def with_internal_topics(root: Path) -> StoredCluster:
    cluster = StoredCluster(root)
    cluster.controller.begin_term(1, 1)
    cluster.control(Bootstrap(CLUSTER, "first"))
    for node in NODES:
        cluster.control(registration(node))
    cluster.create_topic("orders", 2)
    for number, name in ((90, GROUPS_TOPIC), (91, TRANSACTIONS_TOPIC)):
        assert isinstance(cluster.control(CreateInternalTopic(topic_id(number), name, 4, 3)), Topic)
    cluster.checkpoint()
    return cluster


def test_coordinators_do_not_count_in_m(tmp_path: Path) -> None:
    cluster = with_internal_topics(tmp_path)
    (index,) = cluster.controller.checkpoint_indexes
    name = SnapshotName(CLUSTER, CONTROLLER_GROUP, index, 1)
    row, _ = document_row(open_storage(cluster.url), name)
    said = dict(zip(SCHEMA.names[1:], row, strict=True))
    assert said["next_group"] == 11
    assert [partition["group"] for partition in said["partitions"]] == [1, 2]


def test_an_internal_topic_is_no_table(tmp_path: Path) -> None:
    cluster = with_internal_topics(tmp_path)
    storage = open_storage(cluster.url)

    def read(topic: str) -> Any:
        return partition_views(storage, parse({"path": cluster.url, "topic": topic}))

    assert len(read("orders")) == 2
    for name in (GROUPS_TOPIC, TRANSACTIONS_TOPIC):
        with pytest.raises(SourceError, match="is internal: it has no records"):
            read(name)
    with pytest.raises(SourceError, match="there is no topic 'none' in what is published, but orders: "):
        read("none")


def test_a_document_of_groups_names_the_entries_of_its_offsets(tmp_path: Path) -> None:
    made = Coordinator(StoredCluster(tmp_path), GroupsMachine)
    at = SCHEMA.names.index("offset_entries") - 1  # the storage's number stands before a row
    named = [
        document_row(open_storage(made.cluster.url), name_of(made, index, 1))[0][at]
        for index in made.checkpoint_indexes
    ]
    # A term begins with entry 1, and with the one behind each checkpoint.
    assert named == [[2], [2, 5]]
