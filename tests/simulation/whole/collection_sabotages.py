"""Rules of level one, retention and the collector taken out again: what sabotages.py opens, by name.

Nothing here is ever imported by the product.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final
from unittest.mock import patch

from strandline.node.controller.controller_leader import EPOCH_NEEDED, ControllerLeader
from strandline.node.gc import gone_topics
from strandline.node.gc.collectable_epochs import CollectableEpochs, Maximum, ReportedEpoch
from strandline.node.gc.collector import Collector
from strandline.node.gc.gone_topics import GoneTopics
from strandline.node.gc.grace import Grace
from strandline.node.gc.idle_epochs import IdleEpochs
from strandline.node.level_one.pending_objects import PendingObjects
from strandline.node.level_one.sweeper import Sweeper
from strandline.node.objectstore.store import MAX_LIST
from strandline.node.partition.partition import Partition
from strandline.node.partition.reader_holds import ReaderHolds
from strandline.node.partition.refusals import result_of
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.partition.checkpoints import Checkpoints
from strandline.statemachine.partition.epoch_window import EpochWindow
from strandline.statemachine.partition.level_one import RemovedObject
from strandline.statemachine.partition.partition_commands import AdvanceEpoch
from strandline.statemachine.partition.partition_state import PartitionState
from tests.simulation.sabotage import Sabotage

# How far deletion may go.


def _from_seen(self: Partition) -> int:
    """As Partition.collectable_epoch, but by the window that was granted, not the one that was applied."""
    machine, window = self.machine, self.fence.window
    accepted = machine.previous_applied_epoch
    if window is not None and window.oldest is not None:
        accepted = window.oldest
    named = (machine.extents.oldest_epoch, machine.checkpoints.oldest_epoch(machine.time))
    return min([accepted, *(epoch for epoch in named if epoch is not None)]) - 1


def _maximum(self: CollectableEpochs, *, unheard: bool, capped: bool) -> Maximum:
    machine = self._controller.machine
    values = [machine.cluster_epoch - 1] if capped else []
    for topic in machine.topics:
        for group, _, creation_epoch in topic.partitions:
            heard = self._table.get(group)
            if heard is not None:
                values.append(max(heard.value, creation_epoch - 1))
            elif unheard:
                values.append(creation_epoch - 1)
    self._newest = max(self._newest, min(values, default=self._newest))
    return Maximum(self._newest, machine.cluster_epoch, None, None, None, None)


def _skips_unheard(self: CollectableEpochs) -> Maximum:
    return _maximum(self, unheard=False, capped=True)


def _not_capped(self: CollectableEpochs) -> Maximum:
    return _maximum(self, unheard=True, capped=False)


def _one_too_far(self: CollectableEpochs) -> Maximum:
    found = _true_maximum(self)
    return found._replace(epoch=found.epoch + 1)


_true_maximum = CollectableEpochs.maximum


def _takes_its_time(self: Grace, seconds: float) -> None:
    _grace(self, seconds + 3.0)


_grace = Grace.__init__


def _last_word_counts(self: CollectableEpochs, group: int, term: int, value: int) -> bool:
    self._table[group] = ReportedEpoch(value, term, self._loop.time())
    return True


async def _advances_unfenced(self: Partition, command: AdvanceEpoch) -> Any:
    """As Partition._advance_epoch, but without a fence: nothing keeps older windows from coming after it."""
    epoch, window = command.window.newest, self.fence.window
    assert epoch is not None
    assert window is not None
    oldest = max(self.machine.previous_applied_epoch, epoch - 1)
    return result_of(
        await self._replicate(AdvanceEpoch(EpochWindow(window.term, oldest, epoch)), window.term)
    )


def _by_accepted_alone(previous_applied: int, *oldest_named: int | None) -> int:
    return previous_applied - 1


# Level one.


def _all_removed(self: PartitionState) -> list[RemovedObject]:
    return [*self.removed]


async def _sweeps_never(self: Sweeper, replica: Any) -> None:
    """Nobody looks for orphans."""


async def _stays_idle(self: IdleEpochs) -> None:
    """Partitions that nobody writes to stay where they are."""


async def _if_all_need(self: ControllerLeader, machine: Controller) -> bool:
    nodes = [node for node, known in machine.nodes.items() if not known.fenced]
    calls = [self._calls.call(node, EPOCH_NEEDED, [], 0.25) for node in nodes]
    return all(answer is not False for answer in await asyncio.gather(*calls, return_exceptions=True))


async def _forgets_gone(self: GoneTopics) -> None:
    """Nobody looks for what deleted topics left."""


async def _trusts_its_state(self: GoneTopics) -> None:
    """As GoneTopics.sweep, but on any node, and what its state does not know is gone."""
    machine = self._controller.machine
    for prefix in self._behind:
        going = []
        for name in await self._store.list(prefix, "", MAX_LIST):
            owner = gone_topics._owner(name)
            if owner is None:
                continue
            known = machine.topic_by_id(owner.owner_id) if isinstance(owner.owner_id, bytes) else True
            if known is None:
                going.append(name)
        await self._delete(going, machine)
    await _sweep(self)


_sweep = GoneTopics.sweep

COLLECTION: Final = (
    Sabotage(
        "collectable-from-seen",
        "M(p) goes by the window a leader granted, not by what was applied",
        lambda: (patch.object(Partition, "collectable_epoch", property(_from_seen)),),
    ),
    Sabotage(
        "unheard-skipped",
        "a partition that was not heard of does not count in M",
        lambda: (patch.object(CollectableEpochs, "maximum", _skips_unheard),),
    ),
    Sabotage(
        "grace-hides-it",
        "the same, and a grace that is longer than such an M lasts",
        lambda: (
            patch.object(CollectableEpochs, "maximum", _skips_unheard),
            patch.object(Grace, "__init__", _takes_its_time),
        ),
    ),
    Sabotage(
        "not-capped",
        "M is not held below the cluster epoch of the state it was taken from",
        lambda: (patch.object(CollectableEpochs, "maximum", _not_capped),),
    ),
    Sabotage(
        "one-too-far",
        "the oldest epoch that is needed is collected too",
        lambda: (patch.object(CollectableEpochs, "maximum", _one_too_far),),
    ),
    Sabotage(
        "last-word-counts",
        "what a leader said last counts, not the highest that was said",
        lambda: (patch.object(CollectableEpochs, "_note", _last_word_counts),),
    ),
    Sabotage(
        "advances-unfenced",
        "an idle partition follows the cluster epoch without a fence",
        lambda: (patch.object(Partition, "_advance_epoch", _advances_unfenced),),
    ),
    Sabotage(
        "ahead-of-unreconciled",
        "M(p) goes by what is accepted, whatever batches name",
        lambda: (
            patch(
                "strandline.statemachine.partition.partition_state.max_collectable_epoch", _by_accepted_alone
            ),
        ),
    ),
    Sabotage(
        "leases-ignored",
        "a leased checkpoint holds nothing back in level zero",
        lambda: (patch.object(Checkpoints, "oldest_epoch", lambda *_: None),),
    ),
    Sabotage(
        "reader-hold-dropped",
        "a read holds nothing back",
        lambda: (patch.object(ReaderHolds, "oldest_epoch", property(lambda _: None)),),
    ),
    Sabotage(
        "undecided-swept",
        "an object that may still be named is taken for an orphan",
        lambda: (patch.object(PendingObjects, "__contains__", lambda *_: False),),
    ),
    Sabotage(
        "leased-removed",
        "what a leased checkpoint names in level one is deleted once the partition does not name it",
        lambda: (patch.object(PartitionState, "removable", _all_removed),),
    ),
    Sabotage(
        "gone-by-old-state",
        "topics that a node's state does not know are taken for deleted ones",
        lambda: (patch.object(GoneTopics, "sweep", _trusts_its_state),),
    ),
    Sabotage(
        "gone-topics-kept",
        "what deleted topics left in storage stays",
        lambda: (patch.object(GoneTopics, "sweep", _forgets_gone),),
    ),
    Sabotage(
        "orphans-kept",
        "level-one objects that were never named stay",
        lambda: (patch.object(Sweeper, "sweep", _sweeps_never),),
    ),
    Sabotage(
        "idle-epochs-stay",
        "partitions that nobody writes to do not follow the cluster epoch",
        lambda: (patch.object(IdleEpochs, "_look", _stays_idle),),
    ),
    Sabotage(
        "needs-no-epoch",
        "a node says that it needs no newer epoch, whatever it has above the bound",
        lambda: (patch.object(Collector, "needs_newer_epoch", property(lambda _: False)),),
    ),
    Sabotage(
        "all-must-need-it",
        "the cluster epoch rises only where all nodes need that",
        lambda: (patch.object(ControllerLeader, "_newer_epoch_is_needed", _if_all_need),),
    ),
)
