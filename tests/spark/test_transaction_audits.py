"""The audits of transactions find what they look for: each damage turns the expected ones red, and no other.

One cluster with transactions is stored and copied once for each kind of damage; all copies are audited in one
pass, with those of other modules.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Mapping, Set
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pytest
from crc32c import crc32c

from strandline.snapshot.names import checkpoint_prefix, log_name
from strandline.snapshot.spark.audits import AuditRun, ClusterStorage, Verdict
from strandline.snapshot.spark.audits.transaction_audits import SLACK_MS
from strandline.snapshot.storage import open_storage
from strandline.statemachine.groups.group_commands import GroupOpcode
from strandline.statemachine.internal_topics import GROUPS_TOPIC, TRANSACTIONS_TOPIC, coordinator_of
from strandline.statemachine.partition.partition_commands import PartitionOpcode, Tick
from strandline.statemachine.transactions.transaction_commands import TransactionOpcode
from tests.kafka.wire.batches import Record, build
from tests.spark.damage import Copy, State, change_aborted
from tests.spark.stored_cluster import CLUSTER, StoredPartition, Upload
from tests.spark.transactional_cluster import (
    COORDINATORS,
    GROUP,
    TRANSACTIONAL,
    TransactionalCluster,
    build_transactional,
)
from tests.spark.verdicts import NO_COMPACTION, result

# All copies are audited by the test that comes first: some 20 seconds on two idle cores.
pytestmark = pytest.mark.timeout(300)

REPLAY, SEQUENCES = "replay", "producer_sequences"
STABLE, ABORTED = "last_stable_offset_is_right", "aborted_index_equals_replay"
MARKERS, WHOLE = "every_marker_has_its_transaction", "transactions_are_whole"
ROWS = "rows_match_markers"
RAISING, STEADY = 100, 101
PRODUCER_AT, SEQUENCE_AT = 43, 53
"""In a batch's header."""
COMMIT_AT = 4
"""Of `EndTransaction` in an entry: kind, producer id, epoch, number, commit."""


class Damage(NamedTuple):
    """What is done to a copy, which audits must find it, and what one of them must say and where."""

    do: Callable[[Copy, TransactionalCluster], Any]
    found_by: Set[str] = frozenset()
    says: str = ""
    place: Mapping[str, Any] = MappingProxyType({})


def _in_log(copy: Copy, group: int, change: Callable[[list[Any]], list[Any] | None], round_: int = 0) -> None:
    """Change the commands of a partition's log, each by itself; None takes one out."""
    done = []

    def changed(entries: list[Any]) -> None:
        for number, entry in enumerate(entries):
            if isinstance(entry.given, int):
                continue
            term, time, *rest = msgpack.unpackb(entry.given)
            of_partition = isinstance(rest[0], list)
            commands = rest[0] if of_partition else [rest]
            after = [new for one in commands if (new := change(list(one))) is not None]
            if after != commands:
                done.append(number)
                if not after:
                    after = (
                        [[PartitionOpcode.TICK, 1 << 60, -1]] if of_partition else [[_NOTHING, [], [b"none"]]]
                    )
                packed = msgpack.packb([term, time, after] if of_partition else [term, time, *after[0]])
                entries[number] = entry._replace(given=packed)

    copy.change_log(group, copy.indexes(group)[round_], changed)
    assert done, "nothing was changed"


_NOTHING = GroupOpcode.FORGET_TOPICS
"""What takes the place of an entry in a log of groups: forgetting a topic that nobody knows."""


def _markers_of(
    producer: int,
    number: int,
    change: Callable[[list[Any]], list[Any] | None],
    kind: int = PartitionOpcode.END_TRANSACTION,
) -> Callable[[list[Any]], list[Any] | None]:
    def changed(command: list[Any]) -> list[Any] | None:
        mine = command[:2] == [kind, producer] and command[3] == number
        return change(command) if mine else command

    return changed


def _set(at: int, value: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda command: [*command[:at], value, *command[at + 1 :]]


def _drop(command: list[Any]) -> None:
    return None


def _drop_marker(copy: Copy, stored: TransactionalCluster) -> None:
    _in_log(copy, copy.group("payments", 1), _markers_of(RAISING, 1, _drop))


def _drop_groups_marker(copy: Copy, stored: TransactionalCluster) -> None:
    change = _markers_of(RAISING, 1, _drop, GroupOpcode.END_TRANSACTION)
    _in_log(copy, stored.group.group, change)


def _turn_marker(copy: Copy, stored: TransactionalCluster) -> None:
    _in_log(copy, copy.group("payments", 1), _markers_of(RAISING, 1, _set(COMMIT_AT, False)))


def _turn_groups_marker(copy: Copy, stored: TransactionalCluster) -> None:
    change = _markers_of(RAISING, 1, _set(COMMIT_AT, False), GroupOpcode.END_TRANSACTION)
    _in_log(copy, stored.group.group, change)


def _renumber_marker(copy: Copy, stored: TransactionalCluster) -> None:
    _in_log(copy, copy.group("payments", 1), _markers_of(RAISING, 1, _set(3, 2)))


def _unknown_producer(copy: Copy, stored: TransactionalCluster) -> None:
    _in_log(copy, copy.group("payments", 1), _markers_of(RAISING, 1, _set(1, 555)))


def _other_epoch(copy: Copy, stored: TransactionalCluster) -> None:
    _in_log(copy, copy.group("receipts", 0), _markers_of(RAISING, 4, _set(2, 9)))


def _coordinator(stored: TransactionalCluster, name: str) -> int:
    return stored.transactions[coordinator_of(name, COORDINATORS)].group


def _turn_decision(copy: Copy, stored: TransactionalCluster) -> None:
    def change(command: list[Any]) -> list[Any]:
        if command[0] == TransactionOpcode.END and command[1] == "transfers" and command[3] == 0:
            return _set(4, False)(command)
        return command

    _in_log(copy, _coordinator(stored, "transfers"), change)


def _forget_decision(copy: Copy, stored: TransactionalCluster) -> None:
    """The last End of the first round was never there; what comes after it has a log of its own."""

    def change(command: list[Any]) -> list[Any] | None:
        if command[0] == TransactionOpcode.END and command[1] == "transfers" and command[3] == 3:
            return [TransactionOpcode.COMPLETE, "nobody", 1]
        return command

    _in_log(copy, _coordinator(stored, "transfers"), change)


def _forget_part(copy: Copy, stored: TransactionalCluster) -> None:
    receipts = stored.partition("receipts", 0)

    def change(command: list[Any]) -> list[Any]:
        if command[0] == TransactionOpcode.ENLIST and command[1] == "transfers" and command[3] == 0:
            return _set(4, [one for one in command[4] if one[0] != receipts.topic_id])(command)
        return command

    _in_log(copy, _coordinator(stored, "transfers"), change)


def _newest(topic: str, number: int, change: Callable[[State], None]) -> Callable[[Copy, Any], None]:
    """Change the newest state of all replicas; without logs, so that nothing can be replayed."""

    def do(copy: Copy, stored: TransactionalCluster) -> None:
        copy.without_logs().change_newest(copy.group(topic, number), change)

    return do


def _set_row(**fields: int) -> Callable[[Any], Any]:
    def change(rows: Any) -> Any:
        for name, value in fields.items():
            rows[name][1] = value
        return rows

    return change


def _opened(producer: int, change: Callable[[list[Any]], Any]) -> Callable[[State], None]:
    """Change what a state says of a producer's open transaction: [number, first offset] or None."""

    def changed(state: State) -> None:
        (row,) = (row for row in state["producers"] if row[0] == producer)
        row[7] = change(row[7])

    return changed


def _turn_stored(state: State) -> None:
    """The first inline batch that is a marker says the opposite, under a right checksum."""
    for number, (base, data) in enumerate(state["inline"]):
        if struct.unpack_from(">h", data, 21)[0] & 0x20:
            batch = bytearray(data)
            batch[69] ^= 1
            struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
            state["inline"][number] = (base, bytes(batch))
            return
    raise AssertionError("no marker")


def _lose_sequences(copy: Copy, stored: TransactionalCluster) -> None:
    """The second batch of the producer whose sequences go on from transaction to transaction."""
    found = []
    for extent in copy.extents(copy.group("payments", 1)):
        data = copy.path(extent.object_name).read_bytes()[extent.position :][: extent.length]
        if struct.unpack_from(">q", data, PRODUCER_AT)[0] == STEADY:
            found.append(extent)

    def change(batch: bytearray) -> None:
        (sequence,) = struct.unpack_from(">i", batch, SEQUENCE_AT)
        struct.pack_into(">i", batch, SEQUENCE_AT, sequence + 7)

    copy.rewrite_batch(found[1], change)


def _zombie(copy: Copy, stored: TransactionalCluster) -> None:
    """The second batch of the producer whose epoch rises has the epoch and the next sequence of the first."""
    found = []
    for extent in copy.extents(copy.group("payments", 1)):
        data = copy.path(extent.object_name).read_bytes()[extent.position :][: extent.length]
        if struct.unpack_from(">q", data, PRODUCER_AT)[0] == RAISING:
            found.append((extent, *struct.unpack_from(">hi", data, PRODUCER_AT + 8)))
    (_, first_epoch, _), (second, second_epoch, _) = found[:2]
    assert (first_epoch, second_epoch) == (0, 1)

    def change(batch: bytearray) -> None:
        struct.pack_into(">hi", batch, PRODUCER_AT + 8, 0, 2)

    copy.rewrite_batch(second, change)


def _of_a_former_member(copy: Copy, stored: TransactionalCluster) -> None:
    """What the state has taken came from a member of a generation that is not the group's."""

    def change(command: list[Any]) -> list[Any]:
        of_transactions = command[0] == GroupOpcode.COMMIT_TRANSACTION_OFFSETS
        return [*command[:2], "gone", 7, *command[4:]] if of_transactions and command[7] == 1 else command

    _in_log(copy, stored.group.group, change)


def _without_first_logs(*topics: str) -> Callable[[Copy, TransactionalCluster], None]:
    """As if the logs had been removed with the checkpoints that they lead to."""

    def do(copy: Copy, stored: TransactionalCluster) -> None:
        for group in _groups(stored, *topics):
            index = copy.indexes(group)[0]
            copy.path(log_name(CLUSTER, group, 0, index)).unlink()

    return do


def _behind(*topics: str) -> Callable[[Copy, TransactionalCluster], None]:
    """The newest checkpoints of these were not published."""

    def do(copy: Copy, stored: TransactionalCluster) -> None:
        for group in _groups(stored, *topics):
            shutil.rmtree(copy.path(checkpoint_prefix(CLUSTER, group, copy.indexes(group)[-1])))

    return do


def _never_published(*topics: str) -> Callable[[Copy, TransactionalCluster], None]:
    """Neither checkpoints nor logs of these: only other topics were named when checkpoints were taken."""

    def do(copy: Copy, stored: TransactionalCluster) -> None:
        for group in _groups(stored, *topics):
            shutil.rmtree(copy.path(checkpoint_prefix(CLUSTER, group, 0)).parent)

    return do


def _without_all_logs(*topics: str) -> Callable[[Copy, TransactionalCluster], None]:
    def do(copy: Copy, stored: TransactionalCluster) -> None:
        for group in _groups(stored, *topics):
            _remove_logs(copy, group, len(copy.indexes(group)))

    return do


def _remove_logs(copy: Copy, group: int, count: int) -> None:
    """The oldest ones."""
    indexes = [0, *copy.indexes(group)]
    for after, index in list(pairwise(indexes))[:count]:
        copy.path(log_name(CLUSTER, group, after, index)).unlink()


def _grown(copy: Copy) -> tuple[TransactionalCluster, StoredPartition]:
    """Another such cluster in the copy's place, to go on with."""
    shutil.rmtree(copy.root)
    grown = build_transactional(copy.root)
    return grown, grown.partition("payments", 0)


def _write_behind_marker(grown: TransactionalCluster, partition: StoredPartition) -> None:
    """A batch of a transaction that has ended there comes when the producer's state has expired: the log and
    all replicas take it, so that no replay can see anything wrong."""
    known = partition.machine.producers.get(STEADY)
    assert known is not None
    claim = (STEADY, known.epoch, known.last_sequence + 1, known.ended)
    records = (Record(b"late", grown.cluster.now),)
    data = build(records, producer=claim[:3], attributes=TRANSACTIONAL)
    partition.execute(Tick(0))
    upload = Upload(partition, records, data, claim)  # type: ignore[arg-type]
    grown.cluster.upload(upload)
    opened = partition.machine.open_transaction(STEADY)
    assert opened is not None
    assert opened.number == known.ended
    grown.checkpoint()


def _behind_its_marker(copy: Copy, stored: TransactionalCluster) -> None:
    _write_behind_marker(*_grown(copy))


def _behind_a_marker_that_is_history(copy: Copy, stored: TransactionalCluster) -> None:
    """Only the state says that the marker was there: its log was removed with an old checkpoint."""
    grown, partition = _grown(copy)
    grown.checkpoint()
    _write_behind_marker(grown, partition)
    _remove_logs(copy, partition.group, len(copy.indexes(partition.group)) - 1)


def _groups(stored: TransactionalCluster, *topics: str) -> list[int]:
    found = [one.group for (topic, _), one in stored.cluster.partitions.items() if topic in topics]
    found += [one.group for one in stored.groups if GROUPS_TOPIC in topics]
    return found + [one.group for one in stored.transactions if TRANSACTIONS_TOPIC in topics]


PARTITIONS = ("payments", "receipts")

DAMAGES = {
    "none": Damage(lambda copy, stored: None),
    "no logs": Damage(lambda copy, stored: copy.without_logs()),
    "first logs gone": Damage(_without_first_logs(*PARTITIONS, GROUPS_TOPIC, TRANSACTIONS_TOPIC)),
    "coordinators' first logs gone": Damage(_without_first_logs(TRANSACTIONS_TOPIC)),
    "partitions' first logs gone": Damage(_without_first_logs(*PARTITIONS, GROUPS_TOPIC)),
    "coordinators behind": Damage(_behind(TRANSACTIONS_TOPIC)),
    "partitions behind": Damage(_behind(*PARTITIONS, GROUPS_TOPIC)),
    "coordinators never published": Damage(_never_published(TRANSACTIONS_TOPIC)),
    "partitions' logs gone": Damage(_without_all_logs(*PARTITIONS, GROUPS_TOPIC)),
    "written behind its marker": Damage(
        _behind_its_marker, {WHOLE},
        "transaction 7 of producer 101 has something here behind the marker of transaction 7",
        {"topic": "payments", "partition": 0},
    ),
    "written behind a marker that is history": Damage(
        _behind_a_marker_that_is_history, {WHOLE},
        "transaction 7 of producer 101 has something here behind the marker of transaction 7",
        {"topic": "payments", "partition": 0},
    ),
    "marker missing": Damage(
        _drop_marker, {WHOLE, MARKERS, REPLAY},
        "transaction 1 of producer 100 of transfers is complete, committed",
        {"topic": "payments", "partition": 1},
    ),
    "groups' marker missing": Damage(
        _drop_groups_marker, {WHOLE, REPLAY}, "and has no marker here", {"topic": "__consumer_offsets"}
    ),
    "marker turned": Damage(
        _turn_marker, {WHOLE, MARKERS, REPLAY},
        "says aborted, its coordinator decided committed", {"topic": "payments", "partition": 1},
    ),
    "torn": Damage(
        _turn_groups_marker, {WHOLE, MARKERS, REPLAY}, "is aborted here and committed in group",
        {"topic": "__consumer_offsets"},
    ),
    "marker of another": Damage(
        _renumber_marker, {WHOLE, MARKERS, REPLAY},
        "the marker of transaction 2 of producer 100 ends transaction 1", {"topic": "payments"},
    ),
    "marker of nobody": Damage(
        _unknown_producer, {WHOLE, MARKERS, REPLAY},
        "the marker of transaction 1 of producer 555: no coordinator knows its producer",
        {"topic": "payments", "partition": 1},
    ),
    "marker of another epoch": Damage(
        _other_epoch, {MARKERS, REPLAY}, "has epoch 9, its coordinator decided 4", {"topic": "receipts"}
    ),
    "decision turned": Damage(
        _turn_decision, {MARKERS}, "says committed, its coordinator decided aborted"
    ),
    "never decided": Damage(_forget_decision, {MARKERS, REPLAY}, "was never decided"),
    "no part of it": Damage(
        _forget_part, {WHOLE}, "has something here, and this is not part of it", {"topic": "receipts"}
    ),
    "offsets of a member that was": Damage(
        _of_a_former_member, {WHOLE, REPLAY},
        "transaction 1 of producer 100 has offsets here by entry",
        {"topic": "__consumer_offsets"},
    ),
    "stored marker turned": Damage(
        lambda copy, stored: copy.change_newest(copy.group("payments", 0), _turn_stored),
        {MARKERS, ABORTED, REPLAY, ROWS}, "the stored batch",
    ),
    "sequences missing": Damage(
        _lose_sequences, {SEQUENCES}, "producer 101 epoch 0 misses sequences from 4 to 11",
        {"topic": "payments", "partition": 1},
    ),
    "written behind its fence": Damage(
        _zombie, {SEQUENCES}, "producer 100 epoch 0 comes behind a marker of epoch 1",
        {"topic": "payments", "partition": 1},
    ),
    "aborted forgotten": Damage(
        _newest("payments", 0, change_aborted(lambda rows: np.delete(rows, 1))), {ABORTED, ROWS},
        "a transaction of producer 100 begins at offset 12, which the state has not",
        {"topic": "payments", "partition": 0, "base_offset": 12},
    ),
    "aborted elsewhere": Damage(
        _newest("payments", 0, change_aborted(_set_row(first_offset=11))), {ABORTED},
        "and not at 11, as the state says",
    ),
    "aborted by another": Damage(
        _newest("payments", 0, change_aborted(_set_row(producer_id=101))), {ABORTED, ROWS},
        "a transaction of producer 101 begins at offset 12, says the state; no batch does",
    ),
    "aborted with its beginning gone": Damage(
        _newest("receipts", 0, change_aborted(lambda rows: rows[1:])), {ABORTED, ROWS},
        "which the state has not",
    ),
    "open forgotten": Damage(
        _newest("payments", 1, _opened(STEADY, lambda one: None)), {STABLE, ROWS},
        "a transaction of producer 101 begins at offset 51, which the state has not",
        {"topic": "payments", "partition": 1, "base_offset": 51},
    ),
    "open without a batch": Damage(
        _newest("payments", 0, _opened(7, lambda one: [1, 47])), {STABLE}, "says the state; no batch does"
    ),
    "stable offset goes back": Damage(
        _newest("payments", 0, _opened(7, lambda one: [1, 1])), {STABLE},
        "the last stable offset goes back from",
    ),
    "open elsewhere": Damage(
        _newest("payments", 1, _opened(STEADY, lambda one: [one[0], one[1] - 1])), {STABLE},
        "and not at 50, as the state says",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> TransactionalCluster:
    return build_transactional(tmp_path_factory.mktemp("transactional") / "objects")


def storages(root: Path) -> dict[str, ClusterStorage]:
    """Damaged copies, to be audited together."""
    stored = build_transactional(root / "whole")
    damaged = {}
    for number, (name, damage) in enumerate(DAMAGES.items()):
        copy = Copy(stored.cluster, root / str(number))
        damage.do(copy, stored)
        damaged[name] = ClusterStorage(open_storage(str(copy.root)), CLUSTER)
    return damaged


@pytest.fixture(scope="module")
def runs(audited: dict[str, dict[str, AuditRun]]) -> dict[str, AuditRun]:
    return audited[__name__]


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_by_the_audit_that_looks_for_it_and_no_other(
    name: str, runs: dict[str, AuditRun]
) -> None:
    damage, run = DAMAGES[name], runs[name]
    found = {result.name: result.evidence for result in run.results if result.verdict is Verdict.FINDING}
    assert set(found) == damage.found_by, found
    if damage.found_by:
        texts = [row for rows in found.values() for row in rows if damage.says in str(row["problem"])]
        assert texts, found
        assert {key: texts[0][key] for key in damage.place} == damage.place


def test_the_undamaged_cluster_was_looked_at_as_a_whole(
    runs: dict[str, AuditRun], stored: TransactionalCluster
) -> None:
    run = runs["none"]
    looked = {result.name for result in run.results if result.verdict is Verdict.PASSED}
    of_views = {"views_equal_their_sql", "operators_equal_their_replay"}
    assert looked == {result.name for result in run.results} - NO_COMPACTION - of_views
    machines = [partition.machine for partition in stored.cluster.partitions.values()]
    assert result(run, STABLE).counts == {"checkpoints": 9, "open transactions": 2}
    # Not the marker below the start offset, which the object that holds it has still.
    assert result(run, ABORTED).counts == {
        "markers": 30,
        "aborted transactions": sum(len(one.aborted) for one in machines),
    }
    assert result(run, MARKERS).counts == {
        "markers": 34,
        "decided": 34,
        "decided outside of the covered logs": 0,
    }
    assert result(run, WHOLE).counts == {
        "transactions": 18,
        "committed": 11,
        "parts with a marker due": 33,
        "parts written to": 36,
    }
    assert GROUP in stored.group.machines[0].groups
    assert stored.cluster.now > SLACK_MS


def test_without_logs_nothing_is_said_of_what_only_they_tell(runs: dict[str, AuditRun]) -> None:
    run = runs["no logs"]
    assert {result(run, name).verdict for name in (MARKERS, WHOLE)} == {Verdict.NOTHING}
    assert {result(run, name).verdict for name in (STABLE, ABORTED)} == {Verdict.PASSED}


@pytest.mark.parametrize(
    ("name", "audit", "seen"),
    [
        ("coordinators never published", MARKERS, "markers"),
        ("partitions' logs gone", WHOLE, "transactions"),
    ],
)
def test_what_was_seen_and_compared_with_nothing_is_no_pass(
    name: str, audit: str, seen: str, runs: dict[str, AuditRun]
) -> None:
    run = runs[name]
    assert {result(run, one).verdict for one in (MARKERS, WHOLE)} == {Verdict.NOTHING}
    assert result(run, audit).counts[seen] == result(runs["none"], audit).counts[seen]


def test_what_lies_outside_of_the_covered_logs_is_counted_and_not_missed(runs: dict[str, AuditRun]) -> None:
    whole = result(runs["none"], MARKERS).counts["markers"]
    for name in ("first logs gone", "coordinators' first logs gone", "coordinators behind"):
        counts = result(runs[name], MARKERS).counts
        assert counts["decided outside of the covered logs"] == counts["markers"] - counts["decided"]
        assert 0 < counts["decided"] < whole
    for name in ("first logs gone", "partitions' first logs gone", "partitions behind"):
        parts = result(runs[name], WHOLE).counts["parts with a marker due"]
        assert 0 < parts < result(runs["none"], WHOLE).counts["parts with a marker due"]
