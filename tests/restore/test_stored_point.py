"""What a restore reads, and why it refuses: each before anything was done."""

from __future__ import annotations

import json
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strandline.node.objectstore.storage_owner import KEY, ForeignStorage, Owner
from strandline.node.restore.reading import CannotRestore
from strandline.node.restore.restored_states import (
    DAY_MS,
    INDEXES,
    MAX_TERM,
    RestoredCluster,
    check_terms,
    next_lineage,
    restored_documents,
)
from strandline.node.restore.stored_point import StoredPoint
from strandline.node.restore.take_over import record_attempt, take_over
from strandline.snapshot.names import snapshot_name
from strandline.snapshot.restore_point import (
    attempts_prefix,
    decode_attempt,
    decode_point,
    point_name,
)
from strandline.statemachine.controller import restored_controller
from strandline.statemachine.controller.controller_snapshot import load
from strandline.statemachine.controller.restored_controller import GROUPS, TERMS, earlier_terms
from strandline.statemachine.object_names import object_name
from strandline.statemachine.partition.epoch_window import EpochWindow
from strandline.statemachine.partition.partition_commands import Append
from strandline.statemachine.partition.placeholder import Placeholder
from tests.checkpoints.cluster import take
from tests.checkpoints.harness import CLUSTER, world
from tests.restore.stored import OWNER, UNIQUE, Documents, Stored

DISTANCES = (TERMS, INDEXES, restored_controller.EPOCHS, restored_controller.PRODUCER_IDS)


def _numbers(documents: Documents) -> dict[int, tuple[int, int, int, int]]:
    """By group: term, log index, cluster epoch, next producer id."""
    state = load(documents[0].state)
    return {
        group: (one.term, one.index, state.cluster_epoch, state.next_producer_id)
        for group, one in documents.items()
    }


def test_a_point_is_read_with_the_ends_of_its_partitions() -> None:
    with world() as made:
        stored = Stored(made)
        found = stored.read()
        assert (found.owner, found.point.number, found.attempts) == (OWNER, stored.number, ())
        assert [(one.topic, one.partition, one.start_offset, one.end_offset) for one in found.partitions] == [
            *(("orders", number, 0, 1) for number in range(3)),
            *(("clicks", number, 0, 1) for number in range(2)),
        ]


def test_empty_and_foreign_storage_is_refused() -> None:
    with world() as made:
        stored = Stored(made)
        del stored.objects[KEY]
        assert "has no object 'cluster'" in stored.refused()
        stored.objects[KEY] = b"{}"
        with pytest.raises(ForeignStorage):
            stored.read()
        stored.objects[KEY] = Owner(CLUSTER, "of another").document().encode()
        assert "is of incarnation first, and the storage belongs to" in stored.refused()
        stored.objects[KEY] = Owner("pier", "first").document().encode()
        assert "has no restore point" in stored.refused()
        for name in list(stored.objects):
            del stored.objects[name]
        assert "the storage is empty" in stored.refused()


def test_damaged_documents_are_refused_by_name() -> None:
    with world() as made:
        stored = Stored(made)
        name = point_name(CLUSTER, stored.number)
        point = decode_point(stored.objects[name])
        assert f"there is no restore point 4: name one of {stored.number}" in stored.refused(4)
        for group in point.groups[0], point.groups[2]:
            document = snapshot_name(CLUSTER, *group)
            whole = stored.objects[document]
            stored.objects[document] = whole[:-1] + bytes([whole[-1] ^ 1])
            assert document in stored.refused()
            del stored.objects[document]
            assert f"{document}, which the restore point names, is gone" in stored.refused()
            stored.objects[document] = whole
        other = snapshot_name(CLUSTER, *point.groups[1])
        stored.objects[other] = stored.objects[snapshot_name(CLUSTER, *point.groups[2])]
        assert "holds the state of group 2" in stored.refused()
        stored.objects[name] = stored.objects[name][:-9]
        assert f"{name}: it is damaged" in stored.refused()


def test_a_damaged_record_of_an_attempt_is_no_matter_of_the_point() -> None:
    with world() as made:
        stored = Stored(made)
        found = stored.read()
        stored.do(lambda store: record_attempt(store, found, now_ms=1, rng=made.rng("restore")))
        (name,) = stored.cluster.store.keys(attempts_prefix(CLUSTER))
        stored.objects[name] = stored.objects[name][:-9]
        refusal = stored.refused(1)
        assert f"{name}: it is damaged" in refusal
        assert "It is the record of a restore" in refusal
        assert "--point" not in refusal


def test_objects_that_are_gone_are_found_before_anything_is_done() -> None:
    with world() as made:
        stored = Stored(made)
        for replica in stored.cluster.replicas[1].values():
            replica.apply(Append(EpochWindow(1, 1, 1), [Placeholder(1, 1_000, 10, 1, 0, UNIQUE)]))
        assert take(made, stored.cluster).restore_point
        named = object_name(1, UNIQUE)
        assert f"are gone, of orders-0 ({named})" in stored.refused()
        stored.objects[named] = b"a batch..."
        stored.objects[object_name(2, UNIQUE)] = b"of later"
        found = stored.read()
        assert (found.named_objects, found.later_objects) == (1, 1)
        assert stored.read(stored.number).later_points == 1


def test_terms_indexes_and_epochs_go_on_above_all_that_attempts_before_used() -> None:
    with world() as made:
        stored = Stored(made)
        taken = stored.read().point.taken_ms
        used: list[dict[int, tuple[int, int]]] = []
        for now in (taken + 1, taken + 3 * DAY_MS + 1, taken + 2):  # the clock goes back before the last
            found = stored.read()
            cluster: RestoredCluster = stored.do(
                partial(record_attempt, stored=found, now_ms=now, rng=made.rng("restore"))
            )
            documents = {document.group: document for document in restored_documents(found, cluster)}
            assert sorted(documents) == [0, 1, 2, 3, 4, 5]
            assert documents[0].voters == (1, 2, 3)
            used.append({group: (one.term, one.index) for group, one in documents.items()})
            state = load(documents[0].state)
            assert state.incarnation == cluster.incarnation
            assert {node: folder.folder for node, folder in state.folders.items()} == cluster.folders
            stored.do(partial(take_over, stored=found, made=cluster))
            assert json.loads(stored.objects[KEY])["incarnation"] == cluster.incarnation
        for earlier, later in pairwise(used):
            for group, (term, index) in earlier.items():
                assert later[group][0] >= term + TERMS
                assert later[group][1] >= index + INDEXES
        names = stored.cluster.store.keys(attempts_prefix(CLUSTER))
        assert [decode_attempt(stored.objects[name]).lineage for name in names] == [2, 7, 9]
        assert next_lineage(stored.read(), taken) == 11


@settings(max_examples=6, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=3, max_size=6))
@example([(0, 0), (1, 0), (0, 0)])
def test_restores_of_any_chain_of_points_have_no_number_in_common(chain: list[tuple[int, int]]) -> None:
    """Each goes on from the point of any life before it, and takes a point of its own; days go by."""
    with world() as made:
        stored = Stored(made)
        points, now = [stored.number], stored.read().point.taken_ms
        used = [_numbers({one.group: one for one in stored.read().documents.values()})]
        added = [0]
        for choice, days in chain:
            now += days * DAY_MS
            found = stored.read(points[choice % len(points)])
            cluster = stored.do(
                partial(record_attempt, stored=found, now_ms=now, rng=made.rng(f"{len(points)}"))
            )
            documents = {one.group: one for one in restored_documents(found, cluster)}
            stored.do(partial(take_over, stored=found, made=cluster))
            used.append(_numbers(documents))
            added.append(earlier_terms(load(documents[0].state).next_group))
            points.append(stored.take_again(found.point, cluster, documents, now))
        for earlier, later in pairwise(used):
            for group, numbers in earlier.items():
                for before, after, distance in zip(numbers, later[group], DISTANCES, strict=True):
                    assert after >= before + distance
        for before, after in pairwise(added):
            assert after >= before + TERMS, "a partition that is added again has a leader epoch twice"


def test_a_group_goes_on_above_the_terms_of_lives_before_also_where_it_was_never_led_above_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A group may be in the point without a leader, or with one of a release that began at term 1."""
    monkeypatch.setattr(restored_controller, "GROUPS", 2)
    with world() as made:
        stored = Stored(made)
        found = stored.read()
        assert max(one.term for one in found.documents.values()) < TERMS
        cluster = RestoredCluster("again", {1: 11, 2: 12, 3: 13}, steps=3, lineage=4)
        terms = {one.group: one.term for one in restored_documents(found, cluster)}
        assert [terms[group] // TERMS for group in range(6)] == [3, 3, 4, 4, 5, 5]


@pytest.mark.parametrize("next_group", [7, 99_999, 100_000, 150_000])
def test_a_partition_that_is_added_again_is_led_in_higher_terms_wherever_ids_of_groups_are(
    next_group: int,
) -> None:
    """It was added after the point: within a step of ids, which may cross a multiple of steps."""
    with world() as made:
        stored = Stored(made)
        found = stored.read()
        found.controller.next_group = next_group
        cluster = stored.do(partial(record_attempt, stored=found, now_ms=0, rng=made.rng("restore")))
        again = load(next(restored_documents(found, cluster)).state).next_group
        for lost in (next_group, next_group + 2, next_group + GROUPS - 1):
            assert earlier_terms(again) >= earlier_terms(lost) + TERMS


def test_terms_of_groups_to_come_are_counted_before_a_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restored_controller, "GROUPS", 1)
    with world() as made:
        found = Stored(made).read()
        steps = MAX_TERM // TERMS - 1 - found.controller.next_group
        check_terms(found, steps)
        with pytest.raises(CannotRestore, match=f"clients know leader epochs up to {MAX_TERM}"):
            check_terms(found, steps + 1)


def test_terms_beyond_the_leader_epochs_of_clients_are_refused_before_anything_is_recorded() -> None:
    with world() as made:
        stored = Stored(made)
        found, rng = stored.read(), made.rng("restore")
        days = (MAX_TERM - max(one.term for one in found.documents.values())) // TERMS - 3
        before = dict(stored.objects)

        def recorded(after: int) -> RestoredCluster:
            now = found.point.taken_ms + after * DAY_MS
            cluster: RestoredCluster = stored.do(partial(record_attempt, stored=found, now_ms=now, rng=rng))
            return cluster

        with pytest.raises(CannotRestore, match=f"clients know leader epochs up to {MAX_TERM}"):
            recorded(days + 1)
        assert dict(stored.objects) == before
        cluster = recorded(days)
        assert MAX_TERM - 2 * TERMS < max(one.term for one in restored_documents(found, cluster)) < MAX_TERM


def test_of_two_restores_at_once_both_are_recorded_and_one_at_most_goes_on() -> None:
    with world() as made:
        stored = Stored(made)
        first, second = stored.read(), stored.read()

        def recorded(found: StoredPoint, name: str) -> RestoredCluster:
            work = partial(record_attempt, stored=found, now_ms=1, rng=made.rng(name))
            cluster: RestoredCluster = stored.do(work)
            return cluster

        cluster = recorded(first, "first")
        with pytest.raises(CannotRestore, match=r"another restore of .* began meanwhile"):
            recorded(second, "second")
        assert len(stored.cluster.store.keys(attempts_prefix(CLUSTER))) == 2
        with pytest.raises(CannotRestore, match=r"another restore of .* began meanwhile"):
            stored.do(lambda store: take_over(store, first, cluster))
        assert json.loads(stored.objects[KEY])["incarnation"] == OWNER.incarnation
        again = stored.read()
        cluster = recorded(again, "third")
        assert cluster.lineage == 2 + max(attempt.lineage for attempt in again.attempts)
        stored.do(lambda store: take_over(store, again, cluster))
        assert stored.read().owner.incarnation == cluster.incarnation


def test_storage_that_is_still_written_to_or_given_away_is_not_taken_over() -> None:
    with world() as made:
        stored = Stored(made)
        found = stored.read()
        cluster = stored.do(lambda store: record_attempt(store, found, now_ms=1, rng=made.rng("restore")))
        stored.objects[object_name(2, UNIQUE)] = b"a batch of a node that runs"
        with pytest.raises(CannotRestore, match="the cluster still runs"):
            stored.do(lambda store: take_over(store, found, cluster))
        stored.objects[KEY] = Owner(CLUSTER, "of another restore").document().encode()
        with pytest.raises(CannotRestore, match="another restore is under way"):
            stored.do(lambda store: take_over(store, found, cluster))
        assert json.loads(stored.objects[KEY])["incarnation"] == "of another restore"


def test_storage_that_a_cluster_still_deletes_from_is_not_taken_over() -> None:
    """No lease keeps what a tail point names."""
    with world() as made:
        stored = Stored(made)
        for replica in stored.cluster.replicas[1].values():
            replica.apply(Append(EpochWindow(1, 1, 1), [Placeholder(1, 1_000, 10, 1, 0, UNIQUE)]))
        gone = object_name(1, UNIQUE)
        stored.objects[gone] = b"a batch..."
        assert take(made, stored.cluster).restore_point
        found = stored.read()
        cluster = stored.do(lambda store: record_attempt(store, found, now_ms=1, rng=made.rng("restore")))
        kept = stored.objects.pop(gone)
        with pytest.raises(CannotRestore, match=f"{gone}, which restore point .* was deleted while"):
            stored.do(lambda store: take_over(store, found, cluster))
        assert json.loads(stored.objects[KEY])["incarnation"] == OWNER.incarnation
        stored.objects[gone] = kept
        stored.do(lambda store: take_over(store, found, cluster))
        assert json.loads(stored.objects[KEY])["incarnation"] == cluster.incarnation
