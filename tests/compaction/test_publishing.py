"""Level one is replaced from the leader's log: its table stays, whatever fails; it is as clean as is said."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strandline.node.compaction.compactor import JobFailed, Published, PublishJob, Why
from strandline.node.level_one.merger import _Merging
from strandline.node.level_one.reader import LevelOneReader, LevelOneReaderConfig, Place
from strandline.node.level_one.retry_backoff import RetryBackoff
from strandline.node.level_zero.cache import BatchCache
from strandline.node.objectstore.store import Buffer, NotDone, ObjectStore
from strandline.node.partition.stored_batches import StoredBatches
from strandline.statemachine.partition.level_one import level_one_name
from strandline.statemachine.partition.partition_commands import (
    LevelOneReplaced,
    ReplaceLevelOne,
    SetStartOffset,
)
from strandline.statemachine.partition.rejection import Rejected, Rejection
from tests.compaction.logs import Plan, plans
from tests.compaction.publishing_rig import LEVEL_ONE, TABLE, Ending, Rig, fill, removals, rig
from tests.compaction.upkeep_harness import contents

LAZY = {**TABLE, "min.cleanable.dirty.ratio": "0.99", "delete.retention.ms": "86400000"}
"""Nothing that was cleaned before is due by its size."""


def test_level_one_gets_what_the_leaders_log_has_left() -> None:
    with rig() as made:
        fill(made, 100)
        made.settle()
        # The newest batch is not cleaned, so the last object is taken whole, and clean up to there.
        assert removals(made) == (99, 100)
        log = made.nodes[0].log(cast(Any, made.partition))
        assert made.partition.committed_in_level_one() == contents(log)
        assert [one.offset for one in contents(log)] == [94, 95, 96, 97, 98, 99]
        assert len(made.partition.machine.level_one) == 1, "what is left of ten objects is one"
        made.check()
        measures = made.nodes[0].upkeep.measures
        assert measures.published_objects >= 10
        assert made.nodes[1].upkeep.measures.published_objects == 0, "it does not lead"
        assert not len(made.nodes[0].level_one.pending), "the fate of each name is definite"


def test_objects_that_have_it_already_stay_and_are_counted_as_clean() -> None:
    """In a topic where each key comes once nothing is ever replaced, and level one is clean all the same."""
    with rig() as made:
        fill(made, 100, keys=100)
        before = list(made.partition.machine.level_one)
        made.settle()
        assert list(made.partition.machine.level_one) == before
        assert removals(made) == (99, 100)
        assert made.nodes[0].upkeep.measures.published_bytes == 0
        made.check()


def test_what_changed_is_written_again_and_the_rest_stays() -> None:
    with rig() as made:
        fill(made, 100, keys=100)
        made.settle()
        before = list(made.partition.machine.level_one)
        made.partition.put(Plan(((b"key 42", b"again", 0),)))
        made.partition.put(Plan(((b"key 43", b"again", 0),)))
        made.partition.lift()
        made.settle()
        after = list(made.partition.machine.level_one)
        assert removals(made) == (101, 102)
        assert [one for one in after if one in before] == [*before[:4], *before[5:]]
        assert made.nodes[0].upkeep.measures.published_objects == 1
        made.check()


def test_objects_become_no_larger_than_the_target() -> None:
    with rig() as made:
        fill(made, 300, keys=150)
        made.settle()
        sizes = [one.size - one.index_bytes for one in made.partition.machine.level_one]
        assert max(sizes) <= 2 * 1024 + 16
        assert len(sizes) > 3
        made.check()


def test_objects_become_no_longer_in_time_than_retention_may_remove_at_once() -> None:
    """A merge_count-th of what the topic keeps, as with merging: an object goes as a whole."""
    hour = 3_600_000
    keep = {"cleanup.policy": "compact,delete", "retention.ms": f"{LEVEL_ONE.merge_count * hour}"}
    with rig({**TABLE, **keep}) as made:
        for number in range(10):
            records = ((b"superseded", b"x", 0), (b"key %d" % number, b"value", number * hour // 2))
            made.partition.put(Plan(records))
            made.partition.lift()
        made.settle()
        assert removals(made) == (18, 18)
        assert [one.base_offset for one in made.partition.machine.level_one] == [0, 6, 12, 16, 18]
        made.check()


def test_it_waits_for_the_ratio_or_for_the_time_that_level_one_holds_removal_back() -> None:
    with rig(LAZY) as made:
        fill(made, 100)
        made.settle()
        node = made.nodes[0]
        log = node.log(cast(Any, made.partition))
        assert log.log is not None
        assert log.log.manifest.clean_end == 79, "a log of which nothing is clean is due by any ratio below 1"
        assert removals(made) == (0, 0)
        assert not made.publish(0, 3000)
        assert made.publish(0, 600), "for an hour level one alone has held removal back"
        while made.publish(0):
            pass
        assert removals(made) == (79, 80)
        made.check()
        half = {**LAZY, "min.cleanable.dirty.ratio": "0.5"}
        node.topics.configs[made.partition.topic_id] = half
        fill(made, 100)
        made.settle()
        assert removals(made) == (199, 200), "most of it is superseded"
        made.check()


def test_an_object_stays_while_the_log_ends_with_what_was_aborted() -> None:
    """A reader of committed records that seeks there would wait for a batch that is not there."""
    with rig() as made:
        partition = made.partition
        fill(made, 15, keys=15, each=5)
        for number in range(5):
            partition.put(Plan(((b"more %d" % number, b"x", 0),)))
        partition.put(Plan(((b"a", b"poison", 0),)), 7)
        partition.lift()
        partition.put(Plan(((b"b", b"open", 0),)), 8)
        partition.end(7, commit=False)
        partition.lift()
        made.settle()
        log = made.nodes[0].log(cast(Any, partition)).log
        assert log is not None
        assert log.manifest.log_end == 21 == partition.machine.last_stable_offset
        assert log.manifest.clean_end == 19
        assert removals(made) == (15, 15), "the object from 15 on has the aborted batch as it was"
        partition.end(8, commit=True)
        partition.lift()
        made.settle()
        assert removals(made) == (23, 23), "the last batch of all is an object of its own"
        made.check()


def test_committed_transactions_lose_their_bit_though_no_byte_more_or_less_is_left() -> None:
    with rig() as made:
        partition = made.partition
        for number in range(20):
            partition.put(Plan(((b"key %d" % number, b"value", 0),)), 7)
            if number % 5 == 4:
                partition.end(7, commit=True)
                partition.lift()
        made.settle()
        assert removals(made) == (23, 24)
        assert made.nodes[0].upkeep.measures.published_objects == 4
        assert not any(data[22] & 0x10 and not data[22] & 0x20 for data in partition.level_one())
        made.check()


def test_a_publication_does_not_go_on_with_a_log_that_was_made_anew() -> None:
    """It was to say how clean the old one was."""
    with rig() as made:
        node, partition = made.nodes[0], made.partition
        fill(made, 30, keys=30)
        for number in range(40):
            partition.put(Plan(((b"other %d" % (number % 5), b"value %d" % number, 0),)))
            if number % 10 == 9:
                partition.lift()
        owner = None
        while owner is None or owner.log is None or owner.log.manifest.clean_end < 69:
            made.wait(11)
            node.run(node.upkeep.look())
            owner = node.log(cast(Any, partition))
            node.run(node.upkeep._ingest_one())
            round_ = node.upkeep._next_round()
            while round_ is not None and not round_.ended:
                node.run(round_.step())
        assert made.publish(0)
        publishing = node.upkeep.publisher._publishings[partition.id]
        assert publishing.publication is not None
        assert publishing.publication.at == 20, "the first two objects have it already"
        assert removals(made) == (0, 0)
        owner.damaged("its disk was replaced")
        node.run(node.upkeep.look())
        made.wait(11)
        node.run(node.upkeep.look())
        assert node.run(node.upkeep._ingest_one())
        assert owner.log.manifest.clean_end == 0
        assert owner.log.manifest.log_end == 70
        for _ in range(10):
            made.publish(0)
            made.check()
        made.settle()
        made.check()


def test_a_name_is_open_until_its_fate_is_definite() -> None:
    """The sweeper would delete the object, and the entry may still count."""
    with rig() as made:
        node, partition = made.nodes[0], made.partition
        fill(made, 100)
        made.members[0].endings = ["limbo"]
        while not partition.limbo:
            made.work(0)
        [object_] = set(made.bucket.keys("l1/")) - partition.named()
        assert bytes.fromhex(object_[-32:]) in node.level_one.pending
        orphans = node.level_one.sweeper._orphans(cast(Any, made.members[0]), 1, [object_])
        assert orphans == []
        partition.flush()
        assert object_ in partition.named()
        made.settle()
        made.check()


def test_a_less_clean_publisher_cleans_first() -> None:
    """Schedule 5: the new leader's log holds what the old one's publication has dropped.

    By its own ratio it would not be cleaned yet.
    """
    with rig() as made:
        less_clean(made)
        assert made.partition.machine.removals.level_one_clean == 39
        assert not made.publish(1), "it has to clean first"
        command = ReplaceLevelOne((), (), 19, 19, 20)
        result = made.nodes[1].run(made.members[1].execute(command))
        assert result == Rejected(Rejection.LESS_CLEAN, 39)
        made.check()
        made.settle()
        made.check()
        assert made.nodes[1].log(cast(Any, made.partition)).log.manifest.clean_end == 39  # type: ignore[union-attr]


def test_without_the_check_a_less_clean_publisher_is_found() -> None:
    """The sabotage of schedule 5: level one has keys twice where it is said to be clean."""
    with rig() as made:
        less_clean(made)
        removals = made.partition.machine.removals
        # Publishing is due, and would be by any ratio.
        made.nodes[1].topics.configs[made.partition.topic_id] = TABLE
        said = removals.level_one_clean, removals.level_one_settled
        # What both checks, in the publisher and in apply, compare with.
        removals.level_one_clean, removals.level_one_settled = removals.mtro, removals.mxro
        assert not made.publish(1), "it waits for a while"
        while made.publish(1):
            pass
        removals.level_one_clean, removals.level_one_settled = said
        with pytest.raises(AssertionError, match="C1"):
            made.check()


def less_clean(made: Rig) -> None:
    """Both are clean to 19; then the first cleans to 39 and publishes, and the second comes to lead."""
    fill(made, 20)
    made.settle()
    for number in range(20):
        made.partition.put(Plan(((b"key %d" % (number % 5), b"newer %d" % number, number),)))
    made.partition.lift()
    # The second takes in what is new, and cleans nothing.
    second = made.nodes[1]
    second.topics.configs[made.partition.topic_id] = LAZY
    second.run(second.upkeep.look())
    made.wait(11)
    second.run(second.upkeep.look())
    assert second.run(second.upkeep._ingest_one())
    for _ in range(12):
        made.work(0)
    made.lead(1)


def test_the_start_moves_while_an_object_is_made() -> None:
    """Schedule 18: what was made is refused as a whole, the levels meet, and it goes on by the new state."""
    with rig({**TABLE, "cleanup.policy": "compact,delete"}) as made:
        fill(made, 60, keys=60)
        fill(made, 40, keys=40)
        node = made.nodes[0]
        started: list[PublishJob] = []
        publish = node.compactor.publish

        async def moving(job: PublishJob) -> Published | JobFailed:
            result = await publish(job)
            if not started:
                started.append(job)
                made.partition.apply(SetStartOffset(35))
            return result

        node.compactor.publish = moving  # type: ignore[method-assign]
        made.settle()
        assert started[0].sources[0].base_offset == 0
        assert node.upkeep.measures.abandoned == 1
        assert removals(made) == (99, 100)
        assert made.partition.machine.start_offset == 35
        made.check()


def test_a_publication_goes_on_when_the_start_has_passed_it() -> None:
    """It would end there and count as done: level one held removal back until a record came."""
    with rig({**TABLE, "cleanup.policy": "compact,delete"}) as made:
        fill(made, 60, keys=60)
        node = made.nodes[0]
        ends: list[int] = []
        publish = node.compactor.publish

        async def passed(job: PublishJob) -> Published | JobFailed:
            result = await publish(job)
            if not ends:
                made.partition.apply(SetStartOffset(35))
            ends.append(job.sources[-1].end_offset)
            return result

        node.compactor.publish = passed  # type: ignore[method-assign]
        made.settle()
        assert ends[0] == 20, "what remained of the log did not change"
        assert removals(made) == (59, 60)
        made.check()


def test_a_refusal_is_told_no_more_when_nothing_is_left_to_publish() -> None:
    with rig({**TABLE, "cleanup.policy": "compact,delete"}) as made:
        fill(made, 60, keys=60)
        fill(made, 40, keys=40)
        node = made.nodes[0]
        publish = node.compactor.publish

        async def trimmed(job: PublishJob) -> Published | JobFailed:
            result = await publish(job)
            made.partition.apply(SetStartOffset(100))
            return result

        node.compactor.publish = trimmed  # type: ignore[method-assign]
        made.settle()
        assert node.upkeep.measures.abandoned == 1
        assert node.upkeep.publisher.error(made.partition.group.id) is None


@pytest.mark.parametrize("ending", ["refuse", "lost", "late", "limbo"])
@pytest.mark.parametrize("at", range(3))
def test_an_outcome_that_is_not_known_or_a_refusal(ending: Ending, at: int) -> None:
    with rig() as made:
        fill(made, 200, keys=100, each=20)
        made.members[0].endings = [*["apply"] * at, ending]  # type: ignore[list-item]
        while made.members[0].endings:
            made.work(0)
            made.work(1)
            made.remove()
            made.check()
        made.settle()
        assert removals(made) == (199, 200)
        made.lead(1)
        made.settle()
        made.check()
        orphans = set(made.bucket.keys("l1/")) - made.partition.named()
        kept = {one.unique for one in made.partition.machine.level_one}
        open_ = {name for name in orphans if bytes.fromhex(name[-32:]) in kept}
        assert not open_, "nothing that is named counts as an orphan"


def test_a_late_command_of_a_deposed_leader_changes_nothing() -> None:
    with rig() as made:
        fill(made, 100)
        made.members[0].endings = ["limbo"]
        while not made.partition.limbo:
            made.work(0)
        entry = made.partition.limbo[0]
        made.lead(1, keep=False)
        before = list(made.partition.machine.level_one), removals(made)
        result = made.partition.enter(entry)
        assert isinstance(result, Rejected)
        assert result.reason is Rejection.OLDER_TERM
        assert (list(made.partition.machine.level_one), removals(made)) == before
        made.settle()
        assert removals(made) == (99, 100)
        made.check()


def test_a_duplicate_changes_nothing() -> None:
    with rig() as made:
        fill(made, 100)
        said: list[bytes] = []
        enter = made.partition.enter

        def twice(entry: bytes) -> Any:
            result = enter(entry)
            if isinstance(result, LevelOneReplaced):
                said.append(entry)
                before = list(made.partition.machine.level_one), removals(made)
                again = enter(entry)
                assert not isinstance(again, LevelOneReplaced) or not again.objects
                assert (list(made.partition.machine.level_one), removals(made)) == before
            return result

        made.partition.enter = twice  # type: ignore[method-assign]
        made.settle()
        assert said
        assert removals(made) == (99, 100)
        made.check()


def test_a_store_that_fails_in_the_middle() -> None:
    with rig() as made:
        fill(made, 300, keys=150)
        node = made.nodes[0]
        client = node.compactor._store  # type: ignore[attr-defined]
        put, puts = client.put, []

        async def failing(key: str, parts: Any) -> None:
            puts.append(key)
            if len(puts) in (2, 3):
                raise NotDone("put", key, "the store is away", retriable=True)
            await put(key, parts)

        client.put = failing
        for _ in range(12):
            made.work(0)
            made.check()
        made.settle()
        made.check()
        assert node.upkeep.measures.failed == 2
        assert len(set(puts)) == len(puts), "no name is used twice"
        assert removals(made) == (299, 300)
        assert node.upkeep.publisher.error(made.partition.id) is None
        assert not len(node.level_one.pending)


def test_a_lost_object_is_made_anew_from_the_log() -> None:
    with rig() as made:
        fill(made, 100, keys=100)
        lost = list(made.partition.machine.level_one)[3]
        made.work(0)
        made.work(0)
        while removals(made) == (0, 0):
            made.bucket.objects.pop(level_one_name(made.partition.topic_id, 0, lost.term, lost.unique), None)
            made.work(0)
        made.settle()
        made.check()


@pytest.mark.parametrize("how", ["damaged", "lost"])
def test_an_object_that_no_leader_is_told_of_is_replaced_once_its_keys_are_written_again(how: str) -> None:
    """The leader has compared it before, and does not look at it again until it has less for its offsets."""
    with rig() as made:
        made.nodes[1].leader = None
        fill(made, 100, keys=100)
        made.settle()
        partition = made.partition
        bad = list(partition.machine.level_one)[5]
        name = level_one_name(partition.topic_id, 0, bad.term, bad.unique)
        data = bytearray(made.bucket.objects.pop(name))
        if how == "damaged":
            data[40] ^= 1
            made.bucket.objects[name] = bytes(data)
        joins = made.nodes[1].upkeep.log_of(partition.id)
        assert joins is not None
        joins.damaged("its disk was replaced")
        told = set[str | None]()

        def work() -> int:
            for _ in range(30):
                made.work(0)
                made.work(1)
                made.remove()
                told.add(joins.problems.first)
            return 0 if joins.log is None else joins.log.manifest.log_end

        assert work() == 0, "it cannot be filled"
        [reason] = told - {None}
        assert reason is not None
        assert reason.endswith(f"(offsets {bad.base_offset} to {bad.end_offset})")
        for number in [*range(bad.base_offset, bad.end_offset), 1000]:
            partition.put(Plan(((b"key %d" % number, b"again", number),)))
        partition.lift()
        assert work() == partition.machine.next_offset
        assert joins.problems.first is None
        made.settle()
        made.check()


class Gate(ObjectStore):
    """A store whose gets wait for a test."""

    def __init__(self, store: ObjectStore) -> None:
        self.open = asyncio.Event()
        self.asked = 0
        self._store = store

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        self.asked += 1
        await self.open.wait()
        return await self._store.get_range(key, start, length)


def test_rows_that_go_under_a_read_are_in_its_answer() -> None:
    """Schedule 11: a read was planned over aborted batches; then they are published away."""
    with rig() as made:
        node, partition = made.nodes[0], made.partition
        fill(made, 10)
        partition.put(Plan(((b"key 1", b"poison", 0),)), 7)
        partition.end(7, commit=False)
        fill(made, 10)
        gate = Gate(made.bucket.client(node.sim))  # type: ignore[abstract]
        batches = StoredBatches(
            Place(partition.topic_id, 0),
            partition.machine,
            level_zero=cast(Any, None),
            level_one=LevelOneReader(gate, LevelOneReaderConfig(), loop=cast(Any, node.loop)),
            written=BatchCache(1),
            confirm=made.members[0].confirm,
            group=1,
            local=None,
        )
        task = node.loop.create_task(batches.read_committed(0, 22, 1 << 30))
        made.wait(1)
        assert gate.asked
        made.settle()
        assert partition.machine.removals.mxro > 11
        assert not len(partition.machine.aborted), "the row is gone"
        assert all(b"poison" not in data for data in partition.level_one())
        node.loop.call_soon(gate.open.set)
        made.wait(1)
        answer = task.result()
        assert any(b"poison" in bytes(run.data) for run in answer.batches), "it has the objects of its plan"
        assert [(one.producer_id, one.first_offset) for one in answer.aborted] == [(7, 10)]


def test_a_damaged_log_is_reset_and_publishes_nothing_of_it() -> None:
    with rig() as made:
        fill(made, 100)
        node = made.nodes[0]
        publish = node.compactor.publish
        broken: list[str] = []
        failed: list[JobFailed] = []

        async def damaging(job: PublishJob) -> Published | JobFailed:
            if not broken:
                path = f"{job.place.folder}/{job.segments[0].number:020d}.seg"
                file = node.sim.disk.open(path)
                byte = file.pread(1, 40)
                file.pwrite(bytes([byte[0] ^ 1]), 40)
                file.close()
                broken.append(path)
            told = await publish(job)
            failed.extend([told] if isinstance(told, JobFailed) else [])
            return told

        node.compactor.publish = damaging  # type: ignore[method-assign]
        made.settle()
        assert [one.why for one in failed] == [Why.DAMAGED], "it is not met twice"
        assert node.log(cast(Any, made.partition)).resets == 1
        assert removals(made) == (99, 100)
        made.check()


def test_an_object_that_goes_on_behind_the_log_is_not_replaced() -> None:
    """The log ends at an open transaction, in the middle of the object: of what follows it has nothing."""
    with rig() as made:
        partition = made.partition
        for number in range(8):
            partition.put(Plan(((b"key %d" % (number % 3), b"value %d" % number, number),)))
        partition.put(Plan(((b"open", b"x", 0),)), 7)
        for number in range(8):
            partition.put(Plan(((b"key %d" % (number % 3), b"later %d" % number, number),)))
        partition.lift()
        made.settle()
        log = made.nodes[0].log(cast(Any, partition)).log
        assert log is not None
        assert (log.manifest.clean_end, log.manifest.log_end) == (7, 8)
        assert removals(made) == (0, 0)
        made.check()
        partition.end(7, commit=True)
        partition.lift()
        made.settle()
        assert removals(made) == (17, 17)
        made.check()


def test_nothing_is_merged_across_the_end_of_what_is_clean() -> None:
    """What is compacted would be written again with what is not, and once more when that is."""
    with rig() as made:
        fill(made, 80, keys=80, each=2)
        made.settle()
        fill(made, 6, keys=6, each=2)
        clean = removals(made)[0]
        merger, machine = made.nodes[0].level_one.merger, made.partition.machine
        merging = _Merging(RetryBackoff(1.0))
        below = merger._run(cast(Any, made.members[0]), merging)
        assert below
        assert below[-1].end_offset <= clean
        made.partition.apply(SetStartOffset(70))
        few = [one for one in machine.level_one if one.end_offset <= clean]
        assert 2 <= len(few) < 7
        object.__setattr__(LEVEL_ONE, "merge_count", len(few) + 2)
        try:
            assert not merger._run(cast(Any, made.members[0]), merging), "enough only if both were taken"
            machine.removals.level_one_clean = 0
            assert merger._run(cast(Any, made.members[0]), merging)
        finally:
            object.__setattr__(LEVEL_ONE, "merge_count", 4)


Step = tuple[str, int, Any]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from([-1, -1, 7, 8]), st.lists(plans, min_size=2, max_size=4)),
        st.tuples(st.just("put"), st.sampled_from([-1, -1, 7, 8]), st.lists(plans, min_size=2, max_size=4)),
        st.tuples(st.just("fill"), st.integers(2, 30), st.integers(5, 30)),
        st.tuples(st.just("merge"), st.integers(0, 1), st.none()),
        st.tuples(st.just("end"), st.sampled_from([7, 8]), st.booleans()),
        st.tuples(st.just("lift"), st.just(0), st.integers(1, 6)),
        st.tuples(st.just("lift"), st.just(0), st.integers(1, 6)),
        st.tuples(st.just("work"), st.integers(0, 1), st.integers(1, 4)),
        st.tuples(st.just("work"), st.integers(0, 1), st.integers(1, 4)),
        st.tuples(st.just("ends"), st.integers(0, 1), st.sampled_from(["refuse", "lost", "late", "limbo"])),
        st.tuples(st.just("lead"), st.integers(0, 1), st.booleans()),
        st.tuples(st.just("remove"), st.just(0), st.none()),
        st.tuples(st.just("crash"), st.integers(0, 1), st.integers(0, 120)),
        st.tuples(st.just("lose"), st.integers(0, 1), st.none()),
        st.tuples(st.just("start"), st.just(0), st.integers(1, 8)),
    ),
    min_size=25,
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@example(  # The start offset passes an aborted transaction that level one still has.
    [
        ("put", 8, [Plan(((b"a", b"aborted", 0),))]),
        ("end", 8, False),
        ("fill", 20, 5),
        ("lift", 0, None),
        ("start", 0, 2),
    ]
)
@given(steps)
def test_against_a_plain_model(drawn: list[Step]) -> None:
    """Whatever is written, cleaned, lost, and however commands end: level one has the table that was written,
    and is as clean and settled as the state says."""
    with rig() as made:
        for one in drawn:
            carry_out(made, *one)
            made.check()
        for producer in [*made.partition.opened]:
            made.partition.end(producer, commit=True)
        made.partition.lift()
        made.members[0].endings.clear()
        made.lead(0)
        made.settle()
        made.check()
        machine, pending = made.partition.machine, made.nodes[0].level_one.pending
        pending.prune(lambda group, term: term == machine.term)
        assert not len(pending), "in this term the fate of each name is definite"
        made.nodes[0].run(made.nodes[0].level_one.sweeper.sweep(cast(Any, made.members[0])))
        assert set(made.bucket.keys("l1/")) == made.partition.named(), "no orphan stays, nothing named goes"
        if len(machine.level_one):
            log = made.nodes[0].log(cast(Any, made.partition)).log
            assert log is not None
            assert machine.removals.level_one_clean == max(log.manifest.clean_end, machine.start_offset)


def carry_out(made: Rig, what: str, number: int, how: Any) -> None:
    partition, node = made.partition, made.nodes[min(max(number, 0), 1)]
    if what == "put":
        for plan in how:
            if plan.records:
                partition.put(plan, None if number < 0 else number)
    elif what == "fill":
        fill(made, how, number, 7)
    elif what == "merge":
        node.run(node.level_one.merger.step())
    elif what == "end":
        if number in partition.opened:
            partition.end(number, how)
    elif what == "lift":
        partition.lift(how)
    elif what == "work":
        for _ in range(how):
            made.work(number)
    elif what == "ends":
        made.members[number].endings.append(how)
    elif what == "lead":
        made.lead(number, keep=how)
    elif what == "remove":
        made.remove()
    elif what == "crash":
        # The process is killed in the middle of a step, and comes again: it has its files, and nothing else.
        made.wait(11)
        node.loop.create_task(node.upkeep.step())
        made.wait(how / 1000)
        made.nodes[number] = made.restarted(number)
    elif what == "lose":
        log = node.upkeep.log_of(partition.id)
        if log is not None and log.log is not None:
            log.damaged("its disk was replaced")
    elif what == "start":
        machine = partition.machine
        offset = min(machine.start_offset + how, machine.last_stable_offset)
        if offset > machine.start_offset:
            partition.apply(SetStartOffset(offset))
            partition.skip_lifted()
