"""What the log's ledger writes down: what is known of each group and each of its replicas."""

from __future__ import annotations

from dataclasses import dataclass, field

from strandline.node.raft.configuration import Configuration


@dataclass(slots=True)
class Replica:
    """What is known of one replica, across its restarts unless said otherwise."""

    told_term: int = 0
    """Highest term that the node named in a message."""

    acked: tuple[int, int] | None = None
    """Newest (index, term) that it acknowledged as durable and did not delete since."""

    scanned: tuple[int, int] = (0, 0)
    """(index, term) up to which its log of this boot was compared."""

    base: int = 0
    """Where its log began at the last look."""

    led_term: int = 0
    """Term it led at the last look, 0 if none; of this boot."""

    commit: int = 0
    applied: int = 0
    memberships: list[int] = field(default_factory=list)
    """Indices of the membership entries in its log of this boot."""


@dataclass(slots=True)
class GroupLedger:
    """Everything that was ever true of one group, on whichever node."""

    id: int
    voters: tuple[int, ...]
    entries: dict[tuple[int, int], tuple[int, bytes]] = field(default_factory=dict)
    """(index, term) > (term of the entry before, command)."""

    committed: dict[int, tuple[int, int]] = field(default_factory=dict)
    """index > (term, term of the leader who committed it)."""

    leaders: dict[int, tuple[int, int]] = field(default_factory=dict)
    """term > (node, boot)."""

    votes: dict[tuple[int, int], int] = field(default_factory=dict)
    """(node, term) > whom the node told that it votes for."""

    applied: dict[int, tuple[int, bytes, object, int]] = field(default_factory=dict)
    """index > (term, command, result, how many commands the state had seen)."""

    snapshots: dict[int, int] = field(default_factory=dict)
    """index > checksum of the snapshot's bytes."""

    configurations: list[Configuration] = field(default_factory=list)
    """Committed ones, in order."""

    replicas: dict[int, Replica] = field(default_factory=dict)
