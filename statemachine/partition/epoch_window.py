"""Window of the cluster epochs that a partition accepts at this moment: the rule, without the lock around it.

A level-zero object is stamped with the cluster epoch when it is named, and a partition must never come to
refer to an object that the collector may delete. So a partition's leader accepts a window of epochs, from
`oldest` to `newest`, that only moves up, and refuses objects that a lagging node wrote under an epoch below
it. The window keeps the previous newest epoch as its lower end, so that requests in flight when a new epoch
arrives are still accepted.

Only the leader has the window, for one term: it is never replicated as state and never part of a snapshot.
Its consequences for the replicas travel inside commands (docs/partition.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class EpochStatus(Enum):
    """A window's answer to an epoch."""

    IN_WINDOW = "in_window"
    """Accepted as the window stands; shares it with all others in flight."""
    NEW = "new"
    """Accepted once the window has slid to it, which needs the window alone."""
    STALE = "stale"
    """Below the window: refused for good, because windows only move up."""


@dataclass(frozen=True, slots=True)
class StaleClusterEpoch:
    """A refusal, with the window that refused."""

    epoch: int
    oldest: int
    newest: int

    @property
    def gap(self) -> int:
        """Distance of the refused epoch below the window, at least 1."""
        return self.oldest - self.epoch

    def __str__(self) -> str:
        return f"stale_cluster_epoch: epoch {self.epoch} is below the window [{self.oldest}, {self.newest}]"


@dataclass(frozen=True, slots=True)
class EpochWindow:
    """The accepted epochs `oldest..newest`, both included, of one leader's term; both None when empty.

    Immutable: sliding gives another window, so a fence can keep the one it was granted under.
    """

    term: int
    oldest: int | None = None
    newest: int | None = None

    def __post_init__(self) -> None:
        if (self.oldest is None) != (self.newest is None):
            raise ValueError(f"a window has both ends or none, not [{self.oldest}, {self.newest}]")
        if self.oldest is not None and self.newest is not None and not 0 <= self.oldest <= self.newest:
            raise ValueError(f"a window goes up from 0, not [{self.oldest}, {self.newest}]")

    @classmethod
    def recovered(cls, term: int, max_applied_epoch: int | None) -> EpochWindow:
        """The window a leader starts its term with, once it has applied all of earlier terms.

        It is exactly the epoch last applied, whatever window this very node held in an earlier term: the
        next new epoch E then gives `[max_applied_epoch, E]` by the ordinary rule. None: nothing was ever
        applied, every epoch is new.
        """
        return cls(term, max_applied_epoch, max_applied_epoch)

    def classify(self, epoch: int) -> EpochStatus:
        """Decide on an epoch; after any wait decide again, on the window of that moment."""
        if self.newest is None or self.oldest is None or epoch > self.newest:
            return EpochStatus.NEW
        return EpochStatus.STALE if epoch < self.oldest else EpochStatus.IN_WINDOW

    def slide(self, epoch: int) -> EpochWindow:
        """The window after a new epoch: from the epoch that was newest up to this one.

        Raises ValueError when the epoch is not new: sliding twice to one epoch would shut out the older half.
        """
        if self.classify(epoch) is not EpochStatus.NEW:
            raise ValueError(f"epoch {epoch} is not above the window [{self.oldest}, {self.newest}]")
        return EpochWindow(self.term, epoch if self.newest is None else self.newest, epoch)

    def refusal(self, epoch: int) -> StaleClusterEpoch:
        """The answer to an epoch below this window; raises ValueError for any other."""
        if self.oldest is None or self.newest is None or epoch >= self.oldest:
            raise ValueError(f"epoch {epoch} is not below the window [{self.oldest}, {self.newest}]")
        return StaleClusterEpoch(epoch, self.oldest, self.newest)

    @property
    def size(self) -> int:
        """Number of epochs that the window spans, skipped ones included; 0 if it is empty."""
        if self.newest is None or self.oldest is None:
            return 0
        return self.newest - self.oldest + 1


@dataclass(slots=True)
class WindowCounters:
    """Events at one partition's fence since the process started.

    A request is counted when it ends, not at each check: a request that waits is checked more than once.
    """

    slides: int = 0
    new_epoch_fences: int = 0
    same_epoch_fences: int = 0
    rejections: int = 0
    last_gap: int = 0
    """Distance of the last refused epoch below the window; 0 if none was refused."""

    def slid(self) -> None:
        """The window moved; the request that moved it may yet be cancelled."""
        self.slides += 1

    def granted(self, status: EpochStatus) -> None:
        """A fence was granted, by a slide (NEW) or within the window."""
        if status is EpochStatus.NEW:
            self.new_epoch_fences += 1
        else:
            self.same_epoch_fences += 1

    def rejected(self, refusal: StaleClusterEpoch) -> None:
        """A request was refused as stale."""
        self.rejections += 1
        self.last_gap = refusal.gap
