"""Has a partition name new level-one objects, and finds out whether it does.

The command may end without an answer, and then be applied all the same, by a later leader too. Until that is
known the objects are not to be deleted, and nothing else may be believed of them: docs/level-one.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from strandline.node.level_one.context import Replica, leads_in
from strandline.node.level_one.level_one_measures import UpkeepMeasures
from strandline.node.level_one.pending_objects import PendingObjects
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.partition.level_one import LevelOneExtent
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import (
    AdvanceReconciled,
    LevelOneReplaced,
    Reconciled,
    ReplaceLevelOne,
)


class Fate(Enum):
    """Outcome of a command that names objects."""

    NAMED = "named"
    REFUSED = "refused"
    """Definitely: it changed nothing, and never will."""
    OPEN = "open"
    """A later leader will know."""


class Namer:
    """The way of finished objects into the states."""

    def __init__(self, pending: PendingObjects, measures: UpkeepMeasures) -> None:
        self._pending = pending
        self._measures = measures

    async def name(
        self,
        replica: Replica,
        term: int,
        command: AdvanceReconciled | ReplaceLevelOne,
        objects: Sequence[LevelOneExtent],
    ) -> Fate:
        """Replicate a command that names these objects, which were made in `term`.

        There may be none: a publication of a compacted log may find that level one has it already.
        """
        fate = await self._replicated(replica, term, command, objects)
        if fate is not Fate.OPEN:
            for one in objects:
                self._pending.settle(one.unique)
        self._measures.refused += fate is Fate.REFUSED
        return fate

    async def _replicated(
        self,
        replica: Replica,
        term: int,
        command: AdvanceReconciled | ReplaceLevelOne,
        objects: Sequence[LevelOneExtent],
    ) -> Fate:
        # A leader of a later term, this node too, may have taken the objects for orphans and deleted them.
        # From this check to the entry's place in the log of the term there is no other turn of the loop.
        if not leads_in(replica, term):
            return Fate.REFUSED
        result = await replica.execute(command)
        if isinstance(result, (Reconciled, LevelOneReplaced)):
            return Fate.NAMED
        if not isinstance(result, Refusal) or result.reason is not Reason.UNDECIDED:
            return Fate.REFUSED
        self._measures.undecided += 1
        # Not to find it in the state says nothing: in this term it may still come.
        if (
            await replica.confirm()
            and leads_in(replica, term)
            and _has_effect(replica.machine, command, objects)
        ):
            return Fate.NAMED
        return Fate.OPEN


def _has_effect(
    machine: PartitionStateMachine,
    command: AdvanceReconciled | ReplaceLevelOne,
    objects: Sequence[LevelOneExtent],
) -> bool:
    """Whether the state names these objects or did so; one command names all of them.

    Where there are none, whether level one is said to be as clean as the command says.
    """
    if objects:
        unique = objects[0].unique
        return unique in machine.level_one or any(one.unique == unique for one in machine.removed)
    assert isinstance(command, ReplaceLevelOne), "nothing else names no objects"
    removals = machine.removals
    return removals.level_one_clean >= command.clean and removals.level_one_settled >= command.settled
