"""Bound on the memory of one coordinator's classic groups, whose members and requests clients choose."""

from __future__ import annotations

from typing import Final

from strandline.node.coordinator.groups.classic_members import Members

MAX_BYTES: Final = 64 * 1024 * 1024
"""Of all groups of one coordinator together, as they are in memory."""
GROUP_BYTES: Final = 4096
"""Memory of a group besides its members, in bytes."""
MEMBER_BYTES: Final = 512
"""Memory of a member, or of a member id that was given out, besides what the client sent, in bytes."""


class GroupMemory:
    """The approximate bytes of all groups, counted after each change of one."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self.bytes = 0

    def count(self, group_id: str, members: Members) -> None:
        """Count a group as it is now."""
        size = GROUP_BYTES + members.bytes + MEMBER_BYTES * (len(members) + len(members.pending))
        self.bytes += size - self._sizes.get(group_id, 0)
        self._sizes[group_id] = size

    def forget(self, group_id: str) -> None:
        """The group is no longer held."""
        self.bytes -= self._sizes.pop(group_id, 0)

    def clear(self) -> None:
        """No group is held any more."""
        self._sizes.clear()
        self.bytes = 0

    def has_room(self, size: int) -> bool:
        """Whether the groups may grow by this many bytes and a member."""
        return self.bytes + MEMBER_BYTES + size <= MAX_BYTES
