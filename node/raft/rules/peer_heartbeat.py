"""One heartbeat for each pair of nodes, standing for all their quiet groups.

A thousand idle groups would otherwise say a thousand times, ten times a second, that nothing happened. A
quiet group is one whose follower has every entry and knows that all are committed. The heartbeat carries a
digest of the (group, term) pairs its sender leads quietly towards this peer; it refreshes anything only if
the receiver follows exactly those. So a leader that restarted, and leads nothing, holds off no election.
When the digests differ, the leader names its groups and each side wakes those the other does not share.
"""

from __future__ import annotations

from strandline.node.raft.rules.progress import NEVER

_MASK = (1 << 64) - 1


def fingerprint(group: int, term: int) -> int:
    """64 well-mixed bits of a (group, term) pair; a sum of them is the digest of a set."""
    bits = (group * 0x9E3779B97F4A7C15 + term * 0xC2B2AE3D27D4EB4F + 0x165667B19E3779F9) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)


class QuiescedSet:
    """Groups with their terms, and a digest of them that costs the same to keep however many there are."""

    __slots__ = ("digest", "terms")

    def __init__(self) -> None:
        self.terms: dict[int, int] = {}
        self.digest = 0

    def add(self, group: int, term: int) -> None:
        self.discard(group)
        self.terms[group] = term
        self.digest = (self.digest + fingerprint(group, term)) & _MASK

    def discard(self, group: int) -> None:
        term = self.terms.pop(group, None)
        if term is not None:
            self.digest = (self.digest - fingerprint(group, term)) & _MASK


class PeerHeartbeat:
    """This node and one peer: the quiet groups it leads there, and those it follows from there."""

    __slots__ = (
        "acked_sent_at", "cannot_lead_at", "ended", "followed", "groups_sent_at", "heard_at", "led",
        "led_changed_at", "refused", "sent_at",
    )  # fmt: skip

    def __init__(self) -> None:
        self.led = QuiescedSet()
        self.followed = QuiescedSet()
        self.heard_at = NEVER
        """Time of the last heartbeat that named exactly the groups that this node follows."""
        self.acked_sent_at = NEVER
        """Send time of the newest heartbeat that the peer confirmed to match."""
        self.led_changed_at = NEVER
        self.sent_at = NEVER
        self.cannot_lead_at = NEVER
        """When the peer last said that it takes no leadership: it is about to stop, or its disk hangs."""
        self.groups_sent_at = NEVER
        self.ended: dict[int, int] = {}
        """Groups, with their terms, that the heartbeat no longer covers; the peer has yet to learn of it."""
        self.refused: dict[int, None] = {}
        """Groups that this node does not accept the peer's heartbeat for; the peer has yet to learn of it."""

    def lead(self, group: int, term: int, now: float) -> None:
        """The peer is asked to take the shared heartbeat for this group."""
        if not self.led.terms:
            self.led_changed_at = now
        self.led.add(group, term)

    def unlead(self, group: int) -> None:
        term = self.led.terms.get(group)
        if term is not None:
            self.led.discard(group)
            self.ended[group] = term

    def follow(self, group: int, term: int, now: float) -> None:
        """This node takes the peer's shared heartbeat for this group."""
        if not self.followed.terms:
            self.heard_at = max(self.heard_at, now)
        self.followed.add(group, term)
        self.refused.pop(group, None)

    def unfollow(self, group: int) -> None:
        self.followed.discard(group)
        self.refused[group] = None

    def refuse(self, group: int) -> None:
        """This node does not take the peer's heartbeat for a group, though asked to."""
        self.refused[group] = None

    def forget_untold(self) -> None:
        """The connection is gone, and with it the need to tell the peer anything."""
        self.ended.clear()
        self.refused.clear()

    def heartbeat(self) -> tuple[int, int]:
        """Content of a heartbeat: the number of groups, and their digest."""
        return len(self.led.terms), self.led.digest

    def matches(self, count: int, digest: int) -> bool:
        """Whether the sender's quiet groups are exactly those that this node follows under it."""
        return count == len(self.followed.terms) and digest == self.followed.digest
