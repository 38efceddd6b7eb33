"""How much transactional clients do in one run: drawn with the rest of a seed's plan."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """Who writes, copies and reads. Times are virtual seconds."""

    writers: int
    """Transactional ids that write; each has two clients that take turns, and do not tell each other."""
    workers: int
    """Members of one group that consume what was written, and produce each record's like."""
    protocol: str
    """Of that group: "classic", "consumer" (KIP-848), or "both": a worker speaks one or the other in each of
    its lives, so the group changes its protocol now and then, with members in it."""
    static: bool
    """Whether they are static members (KIP-345): one that comes back in time has its place."""
    followers: int
    """Readers of committed records that are there all the time."""
    timeouts: tuple[float, ...]
    """A producer asks for one of these as its transactions' timeout."""
    aborts: float
    """Share of transactions that their clients abort for no reason."""
    dawdle: float
    """Share of transactions that may take longer than their timeout before they go on."""
    patience: float
    """How long a client tries to have a batch acknowledged before it aborts."""
    answer_seconds: float
    """How long it waits for one answer."""
    last_epoch: int
    """The highest epoch of a producer id; Kafka's, or so low that ids are used up."""
    session: float
    """After which silence a member is taken for gone."""
