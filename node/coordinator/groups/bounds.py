"""Bounds on one coordinator's groups and offsets; its leader checks them before a command goes to the log.

Without them, a client that commits under a random group id in each run, or that chooses ids whose hash is one
coordinator's, would fill the memory of all its replicas, and every snapshot. Idle groups are not forgotten
sooner instead, as transactional ids are: a consumer must not lose its offsets.

Commands in progress are counted too, so a bound is exceeded by no more than one command adds.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any, Final, NamedTuple

from strandline.node.coordinator.groups.context import GroupsContext
from strandline.node.refusal import Refusal
from strandline.statemachine.groups.group_commands import CommitOffsets, CommitTransactionOffsets
from strandline.statemachine.groups.group_state import size_of_group
from strandline.statemachine.groups.offsets import Offsets, size_of_name, size_of_offset
from strandline.statemachine.kafka_errors import KafkaError

log = logging.getLogger(__name__)

MAX_GROUPS: Final = 32_768
MAX_OFFSETS: Final = 131_072
"""Of all groups together. A node that starts with all of them in a snapshot is held for 0.35 s."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Of ids, names and metadata, about; see `Totals.bytes`."""
TRANSIENT: Final = 2
"""Factor on the bounds of offsets and bytes for commits that add no partition: until a transaction's marker
comes, its offset is held beside the one that it replaces, and metadata may grow."""
WARN_SECONDS: Final = 600.0
"""Between two warnings to the operator."""

_NOTHING: Final = Offsets()


class Growth(NamedTuple):
    """The growth that a commit would cause."""

    partitions: int
    """Partitions that the group has no offset of yet."""
    offsets: int
    bytes: int


class Bounds:
    """The bounds of one coordinator; used only while this node leads it."""

    def __init__(self, coordinator: GroupsContext) -> None:
        self._coordinator = coordinator
        self._new: Counter[str] = Counter()
        """Groups that commits in progress would create."""
        self._offsets = self._bytes = 0
        """Offsets and bytes of commits in progress."""
        self._warned_at = float("-inf")
        self.refused = 0
        """Number of requests that were refused because of a bound."""

    async def commit(self, command: CommitOffsets | CommitTransactionOffsets) -> Any | Refusal:
        """Execute a commit; one that would exceed a bound gets INVALID_COMMIT_OFFSET_SIZE: no retry."""
        coordinator = self._coordinator
        held = coordinator.machine.groups.get(command.group)
        growth = growth_by(_NOTHING if held is None else held.offsets, command)
        size = growth.bytes + (size_of_group(command.group) if held is None else 0)
        error = KafkaError.INVALID_COMMIT_OFFSET_SIZE
        if not self.has_room_for(command.group):
            return Refusal(error, self._refuse(command.group, f"{MAX_GROUPS} groups"))
        totals, times = coordinator.machine.totals, 1 if growth.partitions else TRANSIENT
        if growth.offsets > 0 and totals.offsets + self._offsets + growth.offsets > times * MAX_OFFSETS:
            return Refusal(error, self._refuse(command.group, f"{MAX_OFFSETS} offsets"))
        if size > 0 and totals.bytes + self._bytes + size > times * MAX_BYTES:
            return Refusal(error, self._refuse(command.group, f"{MAX_BYTES} bytes of offsets"))
        if held is None:
            self._new[command.group] += 1
        self._offsets += growth.offsets
        self._bytes += size
        try:
            return await coordinator.execute(command)
        finally:
            self._offsets -= growth.offsets
            self._bytes -= size
            if held is None:
                self._new -= Counter((command.group,))

    def has_room_for(self, group_id: str) -> bool:
        """Whether the group exists, or may be created. Groups that commits in progress create count too."""
        groups = self._coordinator.machine.groups
        if group_id in groups or group_id in self._new:
            return True
        coming = (self._coordinator.classic.group_ids, self._coordinator.consumer.changing)
        known = len(groups) + len(self._new)
        if known + sum(map(len, coming)) < MAX_GROUPS:
            return True
        return known + sum(one not in groups for ids in coming for one in ids) < MAX_GROUPS

    def refuse_group(self, group_id: str) -> str:
        """Count the refusal of a member whose group does not exist, warn now and then; returns the reason."""
        return self._refuse(group_id, f"{MAX_GROUPS} groups")

    def _refuse(self, group_id: str, what: str) -> str:
        self.refused += 1
        coordinator = self._coordinator
        now = coordinator.loop.time()
        if now - self._warned_at >= WARN_SECONDS:
            self._warned_at = now
            log.warning(
                "%s-%d has %s, as many as a coordinator takes: group %r is refused; delete groups that are "
                "unused, or lower groups.offset_retention_seconds: does a client make an id for each run?",
                coordinator.replica.place.topic, coordinator.number, what, group_id,
            )  # fmt: skip
        return f"The coordinator has {what}, as many as it takes."


def growth_by(present: Offsets, command: CommitOffsets | CommitTransactionOffsets) -> Growth:
    """The growth of a group's offsets when this commit is applied to them."""
    pending = None
    if isinstance(command, CommitTransactionOffsets):
        pending = present.pending.get(command.producer_id, {})
    partitions = offsets = size = 0
    for topic_id, topic, rows in command.offsets:
        committed = present.committed.get(topic_id, {})
        if topic_id not in present.names:
            size += size_of_name(topic)
        for partition, _, _, metadata in rows:
            partitions += partition not in committed
            former = committed.get(partition) if pending is None else pending.get((topic_id, partition))
            offsets += former is None
            size += size_of_offset(metadata) - (0 if former is None else size_of_offset(former.metadata))
    return Growth(partitions, offsets, size)
