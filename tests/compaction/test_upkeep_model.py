"""Any history of a partition, and anything that happens to its local log meanwhile, beside a plain model.

The model is the list of what was written. After each step the log has C1 to C3 of docs/compaction.md, and its
table is that of what was written. What is rare in these histories, test_upkeep.py has one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from strandline.node.compaction import ingest as ingest_module
from strandline.node.compaction import log_filling, log_upkeep, segment_cleaning
from strandline.node.compaction.compaction_measures import Reset
from strandline.node.compaction.filter import Ripe
from strandline.node.compaction.ingest_plan import waiting
from strandline.node.compaction.key_map import KeyHash
from strandline.node.compaction.log_folders import MANIFEST
from strandline.node.compaction.manifest import Manifest
from strandline.snapshot.aborted import NOTHING_ABORTED
from strandline.snapshot.compression import Compression
from strandline.snapshot.object_frame import BadObject
from strandline.statemachine.partition.partition_commands import AdvanceRemoval, SetStartOffset
from tests.compaction.logs import Plan, records
from tests.compaction.upkeep_harness import Node, check, compaction_node

RETENTION_MS = 60_000
LAST = Plan(((b"z", b"the end", 0),))
"""The batch that every history ends with."""
plain = st.builds(Plan, records, st.sampled_from(Compression), st.booleans())
writes = st.tuples(
    st.just("write"),
    st.lists(st.tuples(plain, st.sampled_from([None, None, 1, 2, 3])), min_size=3, max_size=10),
    st.lists(st.tuples(st.sampled_from([1, 2, 3]), st.booleans()), max_size=3),
)
"""Batches of producers, the ends of some transactions, and all of it lifted."""
steps = st.one_of(
    st.tuples(st.just("step"), st.integers(1, 6)),
    st.tuples(st.just("settle")),
    st.tuples(st.just("crash"), st.integers(1, 25), st.sampled_from(["kill", "power"])),
)
events = st.one_of(
    steps,
    st.tuples(st.just("merge")),
    st.tuples(st.just("publish")),
    st.tuples(st.just("publish")),
    st.tuples(st.just("ripen")),
    st.tuples(st.just("ripen")),
    st.tuples(st.just("snapshot")),
    st.tuples(st.just("start"), st.integers(0, 8)),
    st.tuples(st.just("damage"), st.booleans()),
    st.tuples(st.just("flip")),
)
HISTORIES = st.lists(st.tuples(writes, steps, events, events), min_size=2, max_size=8).map(
    lambda rows: [action for row in rows for action in row]
)


class Model:
    """One partition on one node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.replica = node.add()
        self.damaged = self.flipped = False
        node.disk.mkdir("/data")

    def do(self, action: tuple[Any, ...]) -> None:
        name, *given = action
        getattr(self, f"_{name}")(*given)
        self.check()

    def check(self) -> None:
        found = self.node.upkeep.log_of(self.replica.id)
        if found is None or found.readable() is None:
            return
        try:
            check(found, self.replica.ripe, in_round=True)
        except BadObject as error:
            assert self.damaged, "a byte rots only where the test lets it"
            found.damaged(str(error))

    def finish(self) -> None:
        """Everything comes to rest, and everything but the last batch is clean."""
        for producer in (1, 2, 3):
            self._end(producer, True)
        self._write([(LAST, None)], [])
        self._settle()
        self.check()
        self._settle()
        log = self.node.log(self.replica)
        ends = log.ends(self.replica.machine)
        assert ends is not None
        end = self.replica.machine.next_offset
        assert ends.mxfo == end
        assert ends.mcco >= end - 1
        check(log, self.replica.ripe)
        resets = self.node.upkeep.measures.resets
        assert self.damaged or not resets[Reset.DAMAGED]
        assert self.damaged or self.flipped or not resets[Reset.BEHIND], "nobody is overtaken"

    def _write(self, batches: list[tuple[Plan, int | None]], ends: list[tuple[int, bool]]) -> None:
        for plan, producer in batches:
            self.replica.put(plan, producer)
        for each in ends:
            self._end(*each)
        self.replica.lift()

    def _end(self, producer: int, commit: bool) -> None:
        if producer in self.replica.opened:
            self.replica.end(producer, commit)

    def _merge(self) -> None:
        self.replica.merge()

    def _step(self, count: int) -> None:
        for _ in range(count):
            if self.node.step_or_crash() is None:
                self.node = self.node.again()
            self.check()

    def _settle(self) -> None:
        self._step(2)
        self.node.settle()

    def _crash(self, operation: int, kind: str) -> None:
        self.node.disk.crash_at(operation, kind)
        self._step(4)
        self.node.disk.forget_faults()

    def _publish(self) -> None:
        """The leader does what it has to, with the words of this one replica."""
        self._settle()
        found = self.node.log(self.replica)
        if found.readable() is None:
            return
        end, ends = self.replica.publish(found), found.ends(self.replica.machine)
        assert ends is not None
        self.replica.apply(AdvanceRemoval(min(end, ends.mcco), min(end, ends.mxfo), RETENTION_MS))

    def _ripen(self) -> None:
        self._publish()
        self.replica.now_ms += RETENTION_MS
        self.replica.apply(AdvanceRemoval(0, 0, RETENTION_MS))

    def _snapshot(self) -> None:
        self.replica.machine.restore(self.replica.machine.snapshot())

    def _start(self, offsets: int) -> None:
        machine = self.replica.machine
        self.replica.apply(SetStartOffset(min(machine.start_offset + offsets, machine.last_stable_offset)))

    def _damage(self, manifest: bool) -> None:
        """A byte of a file rots while the node is down, or under its eyes."""
        found = self.node.upkeep.log_of(self.replica.id)
        if found is None or found.log is None:
            return
        names = [name for name in self.node.disk.listdir(found.folder) if (name == MANIFEST) is manifest]
        if names:
            self.node.disk.flip_bit(f"{found.folder}/{names[-1]}", 20)
            self.damaged = True
            self.node = self.node.again()
            found = self.node.upkeep.log_of(self.replica.id)

    def _flip(self) -> None:
        """compact, delete and compact again."""
        configs = self.node.topics.configs
        before = configs[self.replica.topic_id]
        configs[self.replica.topic_id] = {"cleanup.policy": "delete"}
        self._step(1)
        configs[self.replica.topic_id] = before
        self.flipped = True


def run(history: list[tuple[Any, ...]]) -> None:
    with compaction_node() as node:
        model = Model(node)
        for action in history:
            model.do(action)
        model.finish()


@settings(max_examples=40, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(HISTORIES)
def test_whatever_happens_the_log_is_clean_and_its_table_is_that_of_the_history(
    history: list[tuple[Any, ...]],
) -> None:
    run(history)


def _bound_at_the_high_watermark(manifest: Manifest, machine: Any, most: int) -> Any:
    class Behind:
        last_stable_offset = machine.high_watermark
        last_reconciled_offset = machine.last_reconciled_offset
        level_one = machine.level_one

    return waiting(manifest, cast(Any, Behind), most)


@contextmanager
def _open_transactions_are_read() -> Iterator[None]:
    bound = _bound_at_the_high_watermark
    with patch.object(log_filling, "waiting", bound), patch.object(log_upkeep, "waiting", bound):
        yield


SABOTAGES: dict[str, Callable[[], Any]] = {
    "aborted data is taken for committed": lambda: patch.object(
        ingest_module, "Aborted", lambda rows: NOTHING_ABORTED
    ),
    "open transactions are read": _open_transactions_are_read,
    "everything is ripe": lambda: patch.object(segment_cleaning, "Ripe", lambda *_: Ripe(1 << 60, 1 << 60)),
    "the map has two bits": lambda: patch.object(segment_cleaning, "KeyHash", lambda: KeyHash(bits=2)),
}


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_each_rule_is_needed(sabotage: str) -> None:
    @settings(
        max_examples=150,
        deadline=None,
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(HISTORIES)
    def found(history: list[tuple[Any, ...]]) -> None:
        run(history)

    with SABOTAGES[sabotage](), pytest.raises(AssertionError):
        found()
