"""Rules of the whole node taken out again, one at a time: the simulation must find every one.

What it takes is told in docs/simulation.md. Nothing here is ever imported by the product.
"""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

from strandline.node.controller.producer_ids import ProducerIds
from strandline.node.controller.registration import Registration
from strandline.node.controller.replica_manager import ReplicaManager
from strandline.node.kafka.handlers import kept_fetch, leading, produce
from strandline.node.kafka.handlers.fetch_partition import FetchPartition
from strandline.node.level_zero.batcher import Batcher
from strandline.node.partition.partition import Partition
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.rules.lease import Lease
from strandline.statemachine.controller.controller_commands import ProducerIdBlock
from strandline.statemachine.machine import Captured
from strandline.statemachine.partition.partition import PartitionStateMachine
from tests.simulation.sabotage import Sabotage, by_name, expecting
from tests.simulation.whole.access_sabotages import ACCESS
from tests.simulation.whole.collection_sabotages import COLLECTION
from tests.simulation.whole.folder_sabotages import FOLDERS
from tests.simulation.whole.found_by import FOUND_BY
from tests.simulation.whole.inline_sabotages import INLINE
from tests.simulation.whole.login_sabotages import LOGINS
from tests.simulation.whole.membership_sabotages import MEMBERSHIP
from tests.simulation.whole.moving_sabotages import MOVING
from tests.simulation.whole.restore_sabotages import RESTORES
from tests.simulation.whole.tail_sabotages import TAILS
from tests.simulation.whole.write_path_sabotages import (
    WRITE_PATH,
)

# The fence and the window.


# Order and duplicates.


# Reading.


def _names_whom_it_hears(self: RaftGroup) -> int | None:
    """As RaftGroup.ready_leader, but a leader counts from its election on."""
    return self.host.node_id if self.is_leader else self.leader


def _confirms_unproven(self: Partition) -> Any:
    async def confirm() -> bool:
        return not self._closed

    return confirm()


_plan = ReplicaManager._plan


def _forgets_stored(self: ReplicaManager) -> Any:
    with patch.object(type(self._host), "stored_groups", lambda _: []):
        return _plan(self)


def _begins_at_once(self: ReplicaManager) -> None:
    self._caught_up = True
    _start(self)


_start = ReplicaManager.start


def _by_name(context: Any, request: Any, operation: Any, name: str | None, topic_id: Any) -> Any:
    """The topic that has the name which the id's topic had."""
    names = _NAMES.setdefault(id(context), {})
    machine = context.controller.machine
    for topic in machine.topics:
        names[topic.topic_id] = topic.name
    if name is None and topic_id is not None and topic_id.bytes in names:
        name = names[topic_id.bytes]
    return _topic_of(context, request, operation, name, topic_id)


_topic_of = leading.topic_of
_NAMES: dict[int, dict[bytes, str]] = {}

# Checkpoints.


def _captures_late(self: PartitionStateMachine, index: int, lease: int) -> Any:
    """As PartitionStateMachine._checkpoint, but the state is taken when the turn is over."""
    late: list[int] = []

    def on_checkpoint(at: int, _: Captured) -> None:
        late.append(at)

    tell, self._on_checkpoint = self._on_checkpoint, on_checkpoint
    try:
        result = _checkpoint(self, index, lease)
    finally:
        self._on_checkpoint = tell
    asyncio.get_running_loop().call_later(0.01, lambda: _tell_late(self, tell, late[0]))
    return result


def _tell_late(machine: PartitionStateMachine, tell: Any, index: int) -> None:
    recorder = tell.__self__
    last, recorder._last = recorder._last, index
    try:
        tell(index, machine.snapshot())
    except (AssertionError, KeyError):
        pass  # the log has let go of that entry
    finally:
        recorder._last = last


_checkpoint = PartitionStateMachine._checkpoint

# The node.


async def _hands_out_its_own(self: ProducerIds) -> int:
    """Blocks that this process made up: the same after a restart, and on other nodes."""
    if self._next == self._end:
        self._following = ProducerIdBlock(0, 1000)
        self._next, self._end = 0, 1000
    self._next += 1
    return self._next - 1


def _keeps_staged(self: Batcher, staged: Any) -> None:
    """What was staged is never given back."""


async def _beats_never(self: Registration) -> None:
    """No heartbeats."""


def _leads_when_elected(self: Partition) -> bool:
    """A term counts from the election on."""
    return self.group.is_leader


def _as_elected(self: Partition, leads: bool) -> None:
    """What the replica notes itself does not count."""


_ALL = (
    *WRITE_PATH,
    Sabotage(
        "fetch-before-barrier",
        "a new leader is named, and serves reads, before it has applied all",
        lambda: (
            patch.object(Partition, "leads", property(_leads_when_elected, _as_elected), create=True),
            patch.object(Partition, "confirm", _confirms_unproven),
            patch.object(RaftGroup, "ready_leader", property(_names_whom_it_hears)),
        ),
    ),
    Sabotage(
        "stored-groups-kept",
        "a node that comes back keeps what is stored of deleted topics",
        lambda: (patch.object(ReplicaManager, "_plan", _forgets_stored),),
    ),
    Sabotage(
        "begun-before-caught-up",
        "a process that starts begins the groups of deleted topics again",
        lambda: (patch.object(ReplicaManager, "start", _begins_at_once),),
    ),
    Sabotage(
        "topic-by-name",
        "a topic's id stands for its name",
        lambda: (
            patch.object(produce, "topic_of", _by_name),
            patch.object(kept_fetch, "topic_of", _by_name),
            patch.dict(_NAMES, clear=True),
        ),
    ),
    Sabotage(
        "captured-late",
        "a checkpoint's state is taken after later entries",
        lambda: (patch.dict("strandline.statemachine.partition.partition._HANDLERS", {6: _captures_late}),),
    ),
    Sabotage(
        "own-producer-ids",
        "nodes make up producer ids",
        lambda: (patch.object(ProducerIds, "next", _hands_out_its_own),),
    ),
    Sabotage(
        "staged-bytes-kept",
        "what was staged is never given back",
        lambda: (patch.object(Batcher, "_release", _keeps_staged),),
    ),
    Sabotage(
        "watchers-kept",
        "a long poll that is over still watches",
        lambda: (patch.object(FetchPartition, "unwatch", lambda _: None),),
    ),
    Sabotage(
        "no-heartbeats",
        "a registered node says nothing more",
        lambda: (patch.object(Registration, "_beat", _beats_never),),
    ),
    Sabotage(
        "followers-not-asked",
        "a leader takes it for granted that its followers hear it",
        lambda: (patch.object(Lease, "acked_at", lambda lease, _: lease.host.now()),),
    ),
    *COLLECTION,
    *FOLDERS,
    *INLINE,
    *MOVING,
    *ACCESS,
    *LOGINS,
    *TAILS,
    *MEMBERSHIP,
    *RESTORES,
)

_FOUND_WITH: dict[str, tuple[int, ...]] = {
    "window-kept-over-terms": (1, 17, 25),
    "window-empty-after-recovery": (122,),
    "no-barrier": (4,),
    "judged-only-once": (1, 9, 25),
    "released-before-the-log": (1, 9, 17),
    "stale-epochs-accepted": (1, 9, 17),
    "own-epoch-moves": (33,),
    "old-epoch-kept": (1, 9, 17),
    "no-turns": (0, 1, 2),
    "fails-alone": (3, 11, 19),
    "gaps-forgotten": (10,),
    "judged-on-arrival": (8,),
    "unknown-is-refusal": (18,),
    "answered-early": (0, 1, 2),
    "unknown-put-is-stored": (3, 11, 19),
    "fetch-before-barrier": (2,),
    "stored-groups-kept": (92,),
    "begun-before-caught-up": (24,),
    "topic-by-name": (28,),
    "captured-late": (5,),
    "own-producer-ids": (0, 1, 2),
    "staged-bytes-kept": (0,),
    "watchers-kept": (0,),
    "no-heartbeats": (0,),
    "followers-not-asked": (8, 10),
    "collectable-from-seen": (2,),
    "unheard-skipped": (4, 12, 20),
    "grace-hides-it": (14,),
    "not-capped": (12,),
    "one-too-far": (6, 14, 22),
    "last-word-counts": (6, 14, 22),
    "advances-unfenced": (6, 14, 22),
    "ahead-of-unreconciled": (0, 1, 2),
    "leases-ignored": (5, 13, 21),
    "reader-hold-dropped": (318,),
    "undecided-swept": (1, 2, 3),
    "leased-removed": (37, 125, 173),
    "gone-by-old-state": (38,),
    "gone-topics-kept": (0,),
    "orphans-kept": (1,),
    "idle-epochs-stay": (0,),
    "needs-no-epoch": (5000,),
    "all-must-need-it": (5000, 5001),
    "any-folder": (3, 12, 13),
    "folders-in-memory": (24, 125, 222),
    "joins-as-a-founder": (3, 12, 13),
    "left-too-early": (13,),
    "newcomers-count": (121, 136, 192),
    "founds-anyway": (121, 136, 192),
    "inline-passes-its-turn": (5, 21, 35),
    "inline-stored-unfenced": (36, 81, 99),
    "stored-epochs-uncounted": (78, 99, 113),
    "stored-inline-appended": (5, 6, 19),
    "inline-bytes-forgotten": (5, 6, 19),
    "moved-at-once": (21, 39),
    "moved-when-added": (21, 39),
    "decisions-outlive-acls": (2024,),
    "acls-of-the-first-state": (2025,),
    "removed-unseen": (2541,),
    "users-of-the-first-state": (2092,),
    "users-in-no-snapshot": (2025,),
    "deleted-users-stay": (2024,),
    "logins-before-caught-up": (2152,),
    "passwords-remembered": (2024,),
    "tails-never-closed": (9, 11, 37),
    "votes-before-level": (2000, 2001),
    "leads-without-a-vote": (2001, 2064),
    "two-configurations": (2016, 2018),
    "taken-before-added": (2016, 2018),
    "balanced-away": (2018, 2085),
    "removed-id-joins": (2018, 2084),
    "removed-comes-back": (2084, 2085),
    "old-incarnation-let-in": (2032,),
    "restored-terms-again": (2032,),
    "added-terms-again": (2550,),
    "restored-epochs-again": (2032,),
    "restored-ids-too-low": (2032,),
    "point-objects-collected": (2039,),
}

SABOTAGES = expecting(by_name(_ALL, _FOUND_WITH).values(), FOUND_BY)
