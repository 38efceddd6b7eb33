"""Every time, size and count that bounds the replicated log, in one place, checked together."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """Limits of one node's replicated log. Times are seconds, sizes bytes.

    Raises ValueError on construction when the values contradict each other.
    """

    heartbeat_seconds: float = 0.1
    """A leader is heard at least this often by a follower that is not partitioned from it."""

    election_min_seconds: float = 0.4
    """No vote is granted within this time of hearing a leader; also the check-quorum period."""

    election_max_seconds: float = 0.8
    """Election timeouts are drawn evenly from [min, max] (Raft §5.2)."""

    lease_fraction: float = 0.6
    """A lease lasts this part of the minimum election timeout; the rest covers clocks that drift apart."""

    time_gap_seconds: float = 0.15
    """Seconds without a run after which a loop counts as paused, or its clock as jumped: promises restart.

    At most the minimum election timeout less a lease. Otherwise a jump too small to be noticed could end a
    follower's promise before its leader's lease.
    """

    max_entry_bytes: int = 4 * MIB
    max_append_bytes: int = 1 * MIB
    """Entries in one append message; a single larger entry travels alone."""

    max_inflight_bytes: int = 8 * MIB
    """Most bytes of unacknowledged entries in flight to one follower of one group."""

    max_inflight_messages: int = 256
    max_pending_commands: int = 65_536
    max_pending_bytes: int = 64 * MIB
    """Commands of one group accepted by its leader but not applied yet."""

    max_apply_per_turn: int = 1_024
    """Entries applied before the loop may do something else."""

    snapshot_entries: int = 20_000
    snapshot_bytes: int = 32 * MIB
    """A snapshot is taken once this many entries, or bytes of entries, were applied since the last."""

    trailing_entries: int = 1_000
    """Entries kept in memory behind a snapshot, so that a follower slightly behind needs no snapshot."""

    trailing_bytes: int = 1 * MIB
    """Bytes of these entries: those that exceed it go with the rest."""

    snapshot_chunk_bytes: int = 512 * KIB
    snapshot_window: int = 4
    """Most chunks in flight to a follower."""

    max_wal_segments: int = 16
    """Above this many segments the groups that pin the oldest one are snapshotted."""

    stuck_seconds: float = 5.0
    """Time after which entries that pin the oldest segment, and that no snapshot can cover, are carried along
    to the end of the log."""

    catch_up_seconds: float = 120.0
    """Time that `add_member` waits for a new member to catch up before it gives up."""

    command_grace_seconds: float = 0.8
    """Time that a deposed leader waits to learn a command's outcome before it answers "unknown"."""

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_seconds * 2 <= self.election_min_seconds:
            raise ValueError("heartbeat_seconds must be at most half of election_min_seconds")
        if not self.election_min_seconds < self.election_max_seconds:
            raise ValueError("election_min_seconds must be below election_max_seconds")
        if not 0 < self.lease_fraction < 1:
            raise ValueError("lease_fraction must lie between 0 and 1")
        if not 0 < self.time_gap_seconds <= self.election_min_seconds - self.lease_seconds:
            raise ValueError("time_gap_seconds must be at most what a lease leaves of election_min_seconds")
        if self.max_append_bytes < 1 or self.max_entry_bytes < 1:
            raise ValueError("max_append_bytes and max_entry_bytes must be positive")

    @property
    def tick_seconds(self) -> float:
        """Time between two looks at the timers of all active groups."""
        return self.heartbeat_seconds / 2

    @property
    def lease_seconds(self) -> float:
        """Time after the send time of an acknowledged round in which a leader may answer reads alone."""
        return self.election_min_seconds * self.lease_fraction
