"""Random histories of a partition under changing leaders, against a plain model.

A leader fences with the real window and proposes; entries wait in its log, are applied in order, and are
lost in part when the next leader comes. Two replicas apply what is committed, one of which is restored from
a snapshot now and then. Objects of level one are written before they are proposed, deleted when they may be,
and forgotten after that; a leader that is gone may still delete. docs/partition.md names the invariants.
"""

from __future__ import annotations

import msgpack
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from strandline.statemachine.machine import Captured
from strandline.statemachine.partition import partition_invariants
from strandline.statemachine.partition.epoch_window import EpochStatus, EpochWindow
from strandline.statemachine.partition.extent import InlineExtent, ObjectExtent, StoredInline
from strandline.statemachine.partition.level_one import LevelOneExtent
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import (
    AdvanceEpoch,
    AdvanceReconciled,
    AdvanceRemoval,
    Append,
    AppendInline,
    Checkpoint,
    Command,
    EndTransaction,
    ForgetRemoved,
    ReleaseCheckpoints,
    ReleaseHold,
    RenewCheckpoint,
    RenewHold,
    ReplaceLevelOne,
    SetStartOffset,
    StoreInline,
    Tick,
    encode,
)
from strandline.statemachine.partition.placeholder import InlineBatch, Placeholder
from strandline.statemachine.partition.rejection import Rejected, Rejection
from tests.statemachine.partition_model import Model
from tests.statemachine.partitions import OBJECT

EXPIRY = 60
DISTANCES = st.sampled_from([0, 0, 0, 1, 1, -1, -1, 2, -2, -3, 6])
"""How far from the newest epoch a request's is."""


class PartitionHistory(RuleBasedStateMachine):
    @initialize(creation_epoch=st.integers(0, 9))
    def create(self, creation_epoch: int) -> None:
        self.captured: list[tuple[int, bytes]] = []
        self.frozen: list[tuple[Captured, bytes]] = []
        self.replica = PartitionStateMachine(
            creation_epoch, lambda index, captured: self.captured.append((index, captured()))
        )
        self.twin = PartitionStateMachine(creation_epoch, lambda *one: None)
        self.model = Model(creation_epoch)
        self.index = 0
        self.clock = 1000
        self.pending: list[tuple[int, int, list[Command]]] = []
        """(term made in, time, commands) of entries in the leader's log that are not committed yet."""
        self.collectable = creation_epoch - 1
        self.reconciled, self.reconciled_by = -1, 0
        self.start = 0
        self.stable = 0
        self.removal_offsets = (0,) * 6
        self.stored: dict[bytes, int] = {}
        """Level-one objects in storage, with the terms in their names."""
        self.reconciling: list[AdvanceReconciled] = []
        self.replacing: list[ReplaceLevelOne] = []
        self.uniques = 0
        self.lead(1)

    def lead(self, term: int) -> None:
        self.index += 1
        self.model.term = term
        for machine in (self.replica, self.twin):
            machine.begin_term(self.index, term, 1)
        self.window = EpochWindow.recovered(term, self.replica.max_applied_epoch)

    # What a leader does.

    def fence(self, distance: int) -> tuple[EpochWindow, int] | None:
        """A fence for an epoch near the newest; None when it is refused."""
        newest = self.window.newest
        assert newest is not None
        epoch = max(0, newest + distance)
        status = self.window.classify(epoch)
        if status is EpochStatus.STALE:
            assert epoch < self.window.refusal(epoch).oldest
            return None
        if status is EpochStatus.NEW:
            self.window = self.window.slide(epoch)
        return self.window, epoch

    def propose(self, *commands: Command) -> None:
        self.pending.append((self.window.term, self.clock, list(commands)))

    def sequence(self, producer: int, producer_epoch_step: int, step: int) -> tuple[int, int]:
        """Producer epoch and base sequence of a batch near what the producer would send next."""
        known = self.model.known(producer)
        if not known:
            return 3, (2**31 - 2 + step) % 2**31
        newest = max(one.producer_epoch for one in known)
        epoch = max(0, newest + producer_epoch_step)
        same = [one.batch for one in known if one.marker is None and one.producer_epoch == epoch]
        following = same[-1].base_sequence + same[-1].record_count if same else 0
        return epoch, (following + step) % 2**31 if epoch == newest else max(0, step)

    def number(self, producer: int, step: int) -> int:
        """Number of a transaction near the one that is open, or would be next."""
        opened = self.model.open(producer)
        present = opened[0].batch.transaction if opened else self.model.ended(producer) + 1
        return max(1, present + step)

    @rule(
        distance=DISTANCES,
        producers=st.lists(st.sampled_from([-1, 1, 2, 3]), min_size=1, max_size=3),
        producer_epoch_step=st.sampled_from([0, 0, 0, 0, 1, -1]),
        step=st.sampled_from([0, 0, 0, 0, 1, -1, -2]),
        transaction_step=st.sampled_from([None, None, 0, 0, 0, 1, -1, -2]),
        count=st.integers(1, 3),
        timestamp=st.integers(0, 99),
        commits=st.integers(0, 3),
    )
    def produce(
        self,
        distance: int,
        producers: list[int],
        producer_epoch_step: int,
        step: int,
        transaction_step: int | None,
        count: int,
        timestamp: int,
        commits: int,
    ) -> None:
        granted = self.fence(distance)
        if granted is None:
            return
        window, epoch = granted
        placeholders = []
        for producer in producers:
            claim = (producer, -1, -1)
            transaction = -1
            if producer >= 0:
                claim = (producer, *self.sequence(producer, producer_epoch_step, step))
                if transaction_step is not None:
                    transaction = self.number(producer, transaction_step)
            placeholders.append(Placeholder(count, timestamp, 10, epoch, 0, OBJECT, *claim, transaction))
        self.propose(Append(window, placeholders))
        self.commit(commits)

    @rule(
        producer=st.sampled_from([1, 2, 3]),
        batches=st.integers(1, 3),
        inline=st.booleans(),
        commits=st.integers(0, 3),
    )
    def write_in_a_transaction(self, producer: int, batches: int, inline: bool, commits: int) -> None:
        """As a producer without faults does."""
        for _ in range(batches):
            claim = (producer, *self.sequence(producer, 0, 0), self.number(producer, 0))
            if inline:
                self.propose(AppendInline([InlineBatch(2, 50, b"batch", *claim)]))
            else:
                granted = self.fence(0)
                assert granted is not None
                self.propose(Append(granted[0], [Placeholder(2, 50, 10, granted[1], 0, OBJECT, *claim)]))
            self.commit(commits)

    @rule(
        producer=st.sampled_from([1, 2, 3]),
        producer_epoch_step=st.sampled_from([0, 0, 1, 1, -1]),
        step=st.sampled_from([0, 0, 0, 0, 1, -1, -2]),
        commit=st.booleans(),
        times=st.integers(1, 2),
        commits=st.integers(0, 3),
    )
    def end(
        self, producer: int, producer_epoch_step: int, step: int, commit: bool, times: int, commits: int
    ) -> None:
        """A coordinator's marker, once or, its outcome unknown, twice; also a late one of earlier."""
        known = self.model.known(producer)
        epoch = max((one.producer_epoch for one in known), default=3) + producer_epoch_step
        number = self.number(producer, step)
        for _ in range(times):
            self.propose(EndTransaction(producer, max(0, epoch), number, commit, 7, 60, b"marker"))
        self.commit(commits)

    @rule(back=st.integers(1, 8), distance=DISTANCES, commits=st.integers(0, 3))
    def retry(self, back: int, distance: int, commits: int) -> None:
        """A batch that is in the log already, in a new object, under a new fence."""
        if len(self.model.written) < back or (granted := self.fence(distance)) is None:
            return
        batch = self.model.written[-back].batch
        if isinstance(batch, Placeholder):
            self.propose(Append(granted[0], [batch._replace(epoch=granted[1])]))
        self.commit(commits)

    @rule(count=st.integers(1, 3), data=st.binary(min_size=1, max_size=5), expiry=st.integers(0, EXPIRY))
    def append_inline_among_others(self, count: int, data: bytes, expiry: int) -> None:
        self.propose(Tick(expiry), AppendInline([InlineBatch(count, 50, data)]), Tick(EXPIRY))

    @rule(
        picks=st.sets(st.integers(0, 5), min_size=1),
        distance=DISTANCES,
        times=st.integers(1, 2),
        commits=st.integers(0, 3),
    )
    def store_inline(self, picks: set[int], distance: int, times: int, commits: int) -> None:
        """Inline batches were stored in an object; or twice, the outcome of the first command unknown."""
        inline = [one for one in self.replica.extents if isinstance(one, InlineExtent)]
        chosen = [one for number, one in enumerate(inline) if number in picks]
        for _ in range(times):
            if chosen and (granted := self.fence(distance)) is not None:
                window, epoch = granted
                rows = [StoredInline(one.base_offset, one.length, epoch, 0, OBJECT) for one in chosen]
                self.propose(StoreInline(window, rows))
        self.commit(commits)

    @rule(distance=st.integers(-2, 6))
    def advance_epoch(self, distance: int) -> None:
        if (granted := self.fence(distance)) is not None:
            self.propose(AdvanceEpoch(granted[0]))

    @rule(records=st.sampled_from([-1, 0, 1, 1, 2, 3, 4, 99]), commits=st.integers(0, 3))
    def set_start_offset(self, records: int, commits: int) -> None:
        start = min(self.replica.start_offset + records, self.replica.next_offset)
        self.propose(SetStartOffset(max(0, start)))
        self.commit(commits)

    @rule(count=st.integers(2, 5), timestamp=st.integers(0, 99), lease=st.integers(0, 80))
    def a_while_passes(self, count: int, timestamp: int, lease: int) -> None:
        """Batches come, all but the last go to level one, and someone begins to read."""
        granted = self.fence(1)
        assert granted is not None
        window, epoch = granted
        batches = [Placeholder(2, timestamp, 10, epoch, 0, OBJECT)] * count
        self.propose(Append(window, batches))
        self.commit(99)
        self.reconcile({0, len(self.replica.extents) - 2}, timestamp, 0, 99)
        if lease:
            self.checkpoint(lease)
            self.commit(1)

    def write(self, base: int, ends: list[int], timestamp: int, term: int) -> list[LevelOneExtent]:
        """Store objects that hold the records from `base` on and end there."""
        written = []
        for end in ends:
            self.uniques += 1
            unique = self.uniques.to_bytes(16, "big")
            self.stored[unique] = term
            written.append(LevelOneExtent(base, end, timestamp, 100 + self.uniques, 50, term, unique))
            base = end
        return written

    @rule(
        ends=st.sets(st.integers(0, 5), min_size=1, max_size=3),
        timestamp=st.integers(0, 99),
        late=st.sampled_from([0, 0, 0, 0, 1]),
        commits=st.integers(0, 3),
    )
    def reconcile(self, ends: set[int], timestamp: int, late: int, commits: int) -> None:
        """Batches go to level one; `late`: the objects were written in an earlier term."""
        extents = list(self.replica.extents)
        if extents:
            cuts = sorted({min(number, len(extents) - 1) for number in ends})
            objects = self.write(
                extents[0].base_offset,
                [extents[number].end_offset for number in cuts],
                timestamp,
                self.window.term - late,
            )
            self.reconciling.append(AdvanceReconciled(extents[0].base_offset, objects))
            self.propose(self.reconciling[-1])
        self.commit(commits)

    @rule(
        first=st.integers(0, 4),
        count=st.integers(1, 3),
        cut=st.booleans(),
        late=st.sampled_from([0, 0, 0, 0, 1]),
        commits=st.integers(0, 3),
    )
    def replace(self, first: int, count: int, cut: bool, late: int, commits: int) -> None:
        """Neighbours in level one become one object, or two."""
        old = list(self.replica.level_one)[first : first + count]
        if old:
            base, end = old[0].base_offset, old[-1].end_offset
            ends = sorted({(base + end) // 2, end} - {base}) if cut else [end]
            objects = self.write(base, ends, old[0].max_timestamp, self.window.term - late)
            command = ReplaceLevelOne([(one.term, one.unique) for one in old], objects)
            self.replacing.append(command)
            self.propose(command)
        self.commit(commits)

    @rule(back=st.integers(1, 3), replaces=st.booleans())
    def propose_objects_again(self, back: int, replaces: bool) -> None:
        """A leader that does not know what became of its command: whatever did, it has no effect twice."""
        proposed = self.replacing if replaces else self.reconciling
        if len(proposed) >= back:
            self.propose(proposed[-back])

    @rule(
        clean=st.integers(0, 40),
        more=st.integers(0, 40),
        less=st.sampled_from([0, 0, 0, 3]),
        commits=st.integers(0, 3),
    )
    def publish(self, clean: int, more: int, less: int, commits: int) -> None:
        """Level one is clean, and settled, up to some offset below its end; nothing is replaced for it."""
        removals = self.replica.removals
        end = min(self.replica.last_reconciled_offset + 1, self.replica.last_stable_offset)
        clean = min(clean, end, self.replica.cleanable_end)
        settled = min(max(clean + more, removals.level_one_settled), max(end, removals.level_one_settled))
        publisher = max(clean, removals.level_one_clean) - less
        self.propose(ReplaceLevelOne([], [], max(publisher, 0), clean, settled))
        self.commit(commits)

    @rule(
        mtro=st.integers(0, 60),
        mxro=st.integers(0, 60),
        retention=st.sampled_from([0, 20, 200]),
        commits=st.integers(0, 3),
    )
    def advance_removal(self, mtro: int, mxro: int, retention: int, commits: int) -> None:
        removals = self.replica.removals
        limits = (removals.level_one_clean, removals.level_one_settled)
        self.propose(AdvanceRemoval(min(mtro, limits[0]), min(mxro, limits[1]), retention))
        self.commit(commits)

    def delete(self, uniques: list[bytes]) -> None:
        for unique in uniques:
            self.stored.pop(unique, None)

    @rule(after_deposed=st.booleans(), commits=st.integers(0, 3))
    def sweep(self, after_deposed: bool, commits: int) -> None:
        """A leader deletes what no state names: of earlier terms all, of its own what is not under way."""
        known = self.model.named() | {one.unique for one in self.replica.removed}
        under_way: set[bytes] = set()
        for _, _, commands in self.pending:
            for command in commands:
                if isinstance(command, AdvanceReconciled):
                    under_way |= {one.unique for one in command.extents}
                elif isinstance(command, ReplaceLevelOne):
                    under_way |= {one.unique for one in command.new}
        term = self.window.term
        orphans = [
            unique
            for unique, of in self.stored.items()
            if unique not in known and (of < term or (of == term and unique not in under_way))
        ]
        if after_deposed:
            self.elect(commits, 1)
            self.a_while_passes(3, 50, 0)
        self.delete(orphans)

    @rule(forget=st.sampled_from([True, True, False]), after_deposed=st.booleans(), commits=st.integers(0, 3))
    def delete_removed(self, forget: bool, after_deposed: bool, commits: int) -> None:
        """Objects go, then their names; a crash between the two leaves the names."""
        chosen = [one.unique for one in self.replica.removable()]
        if after_deposed:
            # The deletes of this leader come when the next one has gone on.
            self.elect(commits, 1)
            self.checkpoint(50)
            self.commit(1)
        self.delete(chosen)
        if forget and chosen:
            self.propose(ForgetRemoved(chosen))
        self.commit(commits)

    @rule(lease=st.integers(0, 80))
    def checkpoint(self, lease: int) -> None:
        self.propose(Checkpoint(lease))

    @rule(which=st.integers(1, 3), lease=st.integers(0, 80), keep=st.integers(0, 2))
    def tend_checkpoints(self, which: int, lease: int, keep: int) -> None:
        index = self.model.saved[-which].index if len(self.model.saved) >= which else 0
        self.propose(RenewCheckpoint(index, lease), ReleaseCheckpoints(keep))

    @rule(reader=st.sampled_from("ab"), distance=st.integers(-4, 6), lease=st.integers(1, 60))
    def hold(self, reader: str, distance: int, lease: int) -> None:
        self.propose(RenewHold(reader, max(0, self.model.holdable() + distance), lease))

    @rule(reader=st.sampled_from("ab"), commits=st.integers(0, 3))
    def release(self, reader: str, commits: int) -> None:
        self.propose(ReleaseHold(reader))
        self.commit(commits)

    @rule(milliseconds=st.integers(-10, 50))
    def pass_time(self, milliseconds: int) -> None:
        self.clock += milliseconds

    # What the log does.

    @rule(count=st.integers(1, 5))
    def commit(self, count: int) -> None:
        for made_in, time, commands in self.pending[:count]:
            self.index += 1
            entry = encode(made_in, time, commands)
            results = [
                machine.apply(self.index, self.model.term, entry) for machine in (self.replica, self.twin)
            ]
            self.model.time = max(self.model.time, time)
            expected = [self.model.apply(self.index, command) for command in commands]
            assert results == [expected, expected]
            if isinstance(commands[0], Checkpoint):
                assert self.captured[-1] == (self.index, self.replica.snapshot())
        del self.pending[:count]

    @rule(survive=st.integers(0, 3), terms=st.integers(1, 2))
    def elect(self, survive: int, terms: int) -> None:
        """What the next leader has of the earlier one's entries it commits; the others are gone."""
        self.commit(survive)
        self.pending.clear()
        self.lead(self.model.term + terms)

    @rule()
    def propose_of_an_earlier_term(self) -> None:
        self.index += 1
        term = self.model.term
        window = EpochWindow(term - 1, 0, 99)
        entry = encode(term - 1, self.clock + 500, [AdvanceEpoch(window)])
        for machine in (self.replica, self.twin):
            assert machine.apply(self.index, term, entry) == Rejected(Rejection.OLDER_TERM, term)

    @rule()
    def capture_a_snapshot(self) -> None:
        self.frozen.append((self.replica.capture(), self.twin.snapshot()))

    @rule()
    def make_what_was_captured(self) -> None:
        """It is what the state was, whatever was applied since."""
        for captured, state in self.frozen:
            assert captured() == state
        self.frozen.clear()

    @rule()
    def restore_the_twin(self) -> None:
        state = self.twin.snapshot()
        self.twin = PartitionStateMachine(0, lambda *one: None)
        self.twin.restore(state)
        assert self.twin.snapshot() == state

    # What always holds.

    @invariant()
    def replicas_are_the_same_byte_for_byte(self) -> None:
        assert self.replica.snapshot() == self.twin.snapshot()

    @invariant()
    def state_is_the_models(self) -> None:
        for machine in (self.replica, self.twin):
            assert (machine.previous_applied_epoch, machine.max_applied_epoch) == (
                self.model.previous,
                self.model.newest,
            )
            assert (machine.start_offset, machine.high_watermark) == (self.model.start, self.model.end)
            assert machine.last_reconciled_offset == self.model.first_unreconciled() - 1
            assert list(machine.level_one) == self.model.level_one()
            assert machine.removed == self.model.removed
            assert machine.removable() == self.model.removable()
            assert machine.extents.bytes == sum(one.length for one in machine.extents)
            assert machine.level_one.bytes == sum(one.size for one in machine.level_one)
            assert [
                (one.base_offset, one.end_offset, one.term, one.max_timestamp) for one in machine.extents
            ] == [(one.base, one.end, one.term, one.batch.max_timestamp) for one in self.model.live()]
            assert machine.max_collectable_epoch == self.model.collectable()
            assert {one.reader: one.offset for one in machine.holds.rows()} == self.model.holds()
            inline = [one for one in machine.extents if isinstance(one, InlineExtent)]
            assert [one.base_offset for one in inline] == [one.base for one in self.model.inline()]
            assert machine.extents.inline_bytes == sum(one.length for one in inline)

    @invariant()
    def the_collectable_epoch_never_goes_down(self) -> None:
        assert self.replica.max_collectable_epoch >= self.collectable
        self.collectable = self.replica.max_collectable_epoch

    @invariant()
    def the_last_reconciled_offset_never_goes_down(self) -> None:
        before, self.reconciled = self.reconciled, self.replica.last_reconciled_offset
        entry, self.reconciled_by = self.reconciled_by, self.replica.last_reconciled_log_index
        assert self.reconciled >= before
        assert self.reconciled_by >= entry
        assert (self.reconciled > before) == (self.reconciled_by > entry)

    @invariant()
    def the_start_offset_never_goes_down(self) -> None:
        assert self.replica.start_offset >= self.start
        self.start = self.replica.start_offset

    @invariant()
    def transactions_are_the_models(self) -> None:
        for machine in (self.replica, self.twin):
            assert machine.last_stable_offset == self.model.last_stable()
            settled = machine.removals.mxro
            expected = [one for one in self.model.aborted() if one.last_offset >= settled]
            assert list(machine.aborted) == expected, "rows go with the data, and no sooner"
            for producer in (1, 2, 3):
                opened = self.model.open(producer)
                present = machine.open_transaction(producer)
                assert (present is None) == (not opened)
                if present is not None:
                    first = opened[0]
                    assert present == (first.batch.transaction, first.base, first.producer_epoch)

    @invariant()
    def the_last_stable_offset_never_goes_down(self) -> None:
        assert self.replica.last_stable_offset >= self.stable
        self.stable = self.replica.last_stable_offset

    @invariant()
    def removal_offsets_never_go_down(self) -> None:
        one = self.replica.removals
        now = (
            one.mtro,
            one.mxro,
            one.ripe_tombstones,
            one.ripe_markers,
            one.level_one_clean,
            one.level_one_settled,
        )
        assert all(after >= before for after, before in zip(now, self.removal_offsets, strict=True))
        self.removal_offsets = now
        partition_invariants.check(self.replica)

    @invariant()
    def a_read_committed_consumer_gets_what_was_committed(self) -> None:
        """As Kafka's Fetcher does it: by the aborted transactions of a fetch and the markers it meets.
        Wherever it begins, and wherever a fetch ends."""
        end = self.replica.last_stable_offset
        # Below `mxro` there is no transactional data any more, which the model does not take away.
        start = max(self.replica.start_offset, self.replica.removals.mxro)
        outcomes = self.model.outcomes()
        readable = [one for one in self.model.written if one.end > start and one.base < end]
        for start in range(0, len(readable), 3):
            for length in (2, len(readable)):
                fetched = readable[start : start + length]
                until = fetched[-1].end
                aborted = self.replica.aborted_between(fetched[0].base, until)
                left_out: set[int] = set()
                got = []
                for one in fetched:
                    begun = {entry for entry in aborted if entry.first_offset < one.end}
                    aborted = [entry for entry in aborted if entry not in begun]
                    left_out |= {entry.producer_id for entry in begun}
                    if one.marker is not None:
                        if not one.marker.commit:
                            left_out.discard(one.producer)
                    elif one.batch.transaction < 0 or one.producer not in left_out:
                        got.append(one.base)
                assert got == [
                    one.base for one in fetched if one.marker is None and outcomes.get(one.base, True)
                ]

    @invariant()
    def both_levels_are_one_log(self) -> None:
        """From the batch that has the start offset to the next offset, without gap or overlap."""
        spans = [(one.base_offset, one.end_offset) for one in self.replica.level_one]
        assert all(end <= self.replica.last_reconciled_offset + 1 for _, end in spans)
        spans += [(one.base_offset, one.end_offset) for one in self.replica.extents]
        assert not spans or spans[0][0] <= self.replica.start_offset < spans[0][1]
        ends = [spans[0][0] if spans else self.replica.start_offset, *(end for _, end in spans)]
        assert [base for base, _ in spans] == ends[:-1]
        assert ends[-1] == self.replica.next_offset

    @invariant()
    def what_is_named_is_stored(self) -> None:
        """Objects that the state or a leased checkpoint names are neither removable nor deleted."""
        named = set(self.model.named())
        for saved in self.model.leased():
            named |= saved.uniques
        assert named <= self.stored.keys()
        assert not named & {one.unique for one in self.replica.removable()}

    @invariant()
    def what_is_not_named_can_be_told(self) -> None:
        """Objects that no longer are named stay in `removed` until they are deleted; any other that is in
        storage was never named, and is of an earlier term or in this leader's hands."""
        known = set(self.model.named()) | {one.unique for one in self.replica.removed}
        was_named = {one.unique for one in self.model.objects}
        assert not (self.stored.keys() & was_named) - known

    @invariant()
    def a_collectable_epoch_is_refused_by_this_leader_and_by_any_next_one(self) -> None:
        if self.collectable >= 0:
            following = EpochWindow.recovered(99, self.replica.max_applied_epoch)
            assert self.window.classify(self.collectable) is EpochStatus.STALE
            assert following.classify(self.collectable) is EpochStatus.STALE

    @invariant()
    def nothing_that_is_needed_is_collectable(self) -> None:
        for extent in self.replica.extents:
            assert not isinstance(extent, ObjectExtent) or extent.epoch > self.collectable
        for _, _, commands in self.pending:
            for command in commands:
                if isinstance(command, Append):
                    assert all(one.epoch > self.collectable for one in command.placeholders)
                elif isinstance(command, StoreInline):
                    assert all(one.epoch > self.collectable for one in command.stored)

    @invariant()
    def no_window_stands_in_the_snapshot(self) -> None:
        assert not {"max_seen_epoch", "oldest_accepted_epoch"} & set(msgpack.unpackb(self.replica.snapshot()))


TestPartitionHistory = PartitionHistory.TestCase
TestPartitionHistory.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
