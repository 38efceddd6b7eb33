"""Checkpoints a partition retains: indexes at which every replica published its state.

Spark reads a checkpoint's objects long after the partition has gone on. A lease, which a running job renews,
keeps them: while it lasts, the oldest epoch that the checkpoint names holds the collector back, and level-one
objects removed after it stay. Leases run in the state machine's time, so every replica agrees on which of
them have ended.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple


class RetainedCheckpoint(NamedTuple):
    """A checkpoint at a log index, leased until a time in ms."""

    log_index: int
    lease_until: int
    oldest_epoch: int | None
    """Lowest epoch its extents name; None when they name no object."""


class Checkpoints:
    """The retained checkpoints of one partition, in index order."""

    def __init__(self, retained: list[RetainedCheckpoint]) -> None:
        self.retained = retained
        for earlier, later in pairwise(retained):
            if later.log_index <= earlier.log_index:
                raise ValueError(
                    f"checkpoints are out of order: {earlier.log_index} before {later.log_index}"
                )

    def add(self, checkpoint: RetainedCheckpoint) -> None:
        self.retained.append(checkpoint)

    def renew(self, log_index: int, lease_until: int, now: int) -> int | None:
        """Lengthen a lease; returns when it ends. None when it has ended or the checkpoint is unknown: what
        it named may be gone."""
        for position, checkpoint in enumerate(self.retained):
            if checkpoint.log_index == log_index and checkpoint.lease_until > now:
                until = max(checkpoint.lease_until, lease_until)
                self.retained[position] = checkpoint._replace(lease_until=until)
                return until
        return None

    def release(self, keep: int, now: int) -> list[int]:
        """Forget the oldest of those without a lease, all but the newest `keep`; returns their indexes."""
        ended = [checkpoint.log_index for checkpoint in self.retained if checkpoint.lease_until <= now]
        released = ended[: max(len(ended) - keep, 0)]
        self.retained = [checkpoint for checkpoint in self.retained if checkpoint.log_index not in released]
        return released

    def go_back(self, ahead: int, now: int) -> None:
        """Time is `now`, and no more `ahead`: a lease that has ended by then has ended now."""
        self.retained = [
            one if one.lease_until > ahead else one._replace(lease_until=min(one.lease_until, now))
            for one in self.retained
        ]

    def oldest_leased(self, now: int) -> int | None:
        """Log index of the first leased checkpoint; None when none is."""
        leased = (checkpoint.log_index for checkpoint in self.retained if checkpoint.lease_until > now)
        return next(leased, None)

    def oldest_epoch(self, now: int) -> int | None:
        """The lowest epoch a leased checkpoint names; None when none does."""
        return min(
            (
                checkpoint.oldest_epoch
                for checkpoint in self.retained
                if checkpoint.oldest_epoch is not None and checkpoint.lease_until > now
            ),
            default=None,
        )
