"""A crash in each operation of the disk of a log's whole life: first reset, ingests, rounds, trim, damage.

Each time the next process finds the log of before or of after, goes on, and has the same table in the end.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from strandline.node.compaction import local_log
from strandline.node.compaction.compaction_measures import Reset
from strandline.node.compaction.local_log import LocalLog
from strandline.statemachine.partition.partition_commands import SetStartOffset
from tests.compaction.logs import Plan
from tests.compaction.upkeep_harness import Node, Replica, check, compaction_node

KEYS = 6


def put(replica: Replica, count: int) -> None:
    for _ in range(count):
        number = replica.machine.next_offset
        value = None if number % 11 == 10 else b"value %d" % number
        replica.put(Plan(((b"key %d" % (number % KEYS), value, number),)))
    replica.lift()


def life(replica: Replica, stage: int) -> bool:
    """What happens to the partition before each settling; False when it is over."""
    if stage == 0:
        put(replica, 25)
    elif stage == 1:
        replica.removal(24, 25)
        put(replica, 9)
    elif stage == 2:
        replica.apply(SetStartOffset(28))
        put(replica, 12)
    return stage < 3


def settled(node: Node, *, checked: bool) -> bool:
    """Steps until nothing is to be done; False if the machine crashed."""
    idle = 0
    while idle < 3:
        worked = node.step_or_crash()
        if worked is None:
            return False
        idle = 0 if worked else idle + 1
        [replica] = node.partitions
        replica_log = node.upkeep.log_of(replica.id)
        if checked and replica_log is not None and replica_log.log is not None:
            check(replica_log, replica.ripe, in_round=True)
    return True


def lived(kind: str, operation: int, seed: int) -> str | None:
    """One life with a crash; the finding, if any. IndexError when there are not so many operations."""
    with compaction_node(seed=seed) as node:
        replica = node.add()
        node.disk.mkdir("/data")
        node.disk.crash_at(operation, kind)
        crashed, stage = False, 0
        while life(replica, stage):
            if not settled(node, checked=False):
                before, crashed = node.upkeep.measures.resets[Reset.NEW], True
                node = node.again()
                assert settled(node, checked=True)
                resets = node.upkeep.measures.resets
                if resets[Reset.DAMAGED] or resets[Reset.BEHIND] or before + resets[Reset.NEW] > 1:
                    return f"it had to be reset: {node.log(replica).reset_for}"
            stage += 1
        if not crashed:
            raise IndexError(operation)
        end = replica.machine.next_offset
        it = node.log(replica).log
        assert it is not None
        check(node.log(replica), replica.ripe)
        if (it.manifest.start_offset > 40, it.manifest.clean_end, it.manifest.log_end) != (
            False,
            end - 1,
            end,
        ):
            return f"it ends at {it.manifest.clean_end} and {it.manifest.log_end}"
        files = node.disk.listdir(it.folder)
        return None if len(files) == 1 + len(it.manifest.segments) else f"{files} are there"


def findings(kinds: tuple[str, ...], step: int = 1) -> list[str]:
    found = []
    for kind in kinds:
        operation = 1
        while True:
            try:
                problem = lived(kind, operation, seed=operation)
            except (AssertionError, IndexError) as error:
                if isinstance(error, IndexError) and error.args == (operation,):
                    break
                problem = repr(error)
            if problem is not None:
                found.append(f"{kind} at operation {operation}: {problem}")
            operation += step
        assert operation > 60, "there are many operations to die in"
    return found


@pytest.mark.parametrize("kind", ["kill", "power"])
def test_a_crash_at_any_operation_of_the_disk_costs_nothing(kind: str) -> None:
    assert findings((kind,)) == []


def _unlinks_first(self: LocalLog, manifest: Any) -> Any:
    gone = {one.segment.number for one in self.view.segments} - {one.number for one in manifest.segments}
    self._remove(gone)
    return _change(self, manifest)


_change = LocalLog._change


@pytest.mark.parametrize(
    "sabotage",
    [
        lambda: patch.object(LocalLog, "_change", _unlinks_first),
        lambda: patch.object(local_log, "_sweep", lambda disk, folder, manifest: None),
    ],
    ids=["removes before the manifest is there", "does not sweep"],
)
def test_each_is_found(sabotage: Any) -> None:
    with sabotage():
        assert findings(("kill",), step=3) != []
