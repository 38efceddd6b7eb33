"""Garbage collection as checkpoints show it: M at different times, and objects that should be deleted.

Every group has checkpoints of its own, at moments of its own. A checkpoint of the controller stands for a
round: with it goes each partition's newest one that is not younger, by the times in their states. Clocks of
two leaders may differ, so a partition may be counted with the checkpoint before: its M(p) only grows, so M is
then too small, which no audit mistakes for something wrong.

There is a row or two for each group, so this is plain Python on the driver: as joins it would cost Spark more
than everything it is about.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final, NamedTuple

GRACE_MS: Final = 1_800_000
"""Three times what a leader by default waits between two sweeps for orphans; collectors are quicker."""


class Grace(NamedTuple):
    """Grace period: a collectable object that stays longer is a finding. Collectors wait, sweep and retry.

    `ms` counts between checkpoints, by the times in their states. `epochs`, when it is given, takes its
    place for level zero: an object is overdue when its epoch is this far below M.
    """

    ms: int = GRACE_MS
    epochs: int | None = None


class PartitionThen(NamedTuple):
    """A partition at one of its checkpoints; see the columns of documents.SCHEMA."""

    group: int
    log_index: int
    time: int
    term: int
    max_collectable: int
    oldest_named: int | None
    removed: Sequence[str]
    removable: Sequence[str]


class ControllerThen(NamedTuple):
    """The controller at one of its checkpoints; `partitions` are groups with their creation epochs."""

    log_index: int
    time: int
    cluster_epoch: int
    next_group: int
    paused: bool
    partitions: dict[int, int]
    deleted_topics: Sequence[str]


class Round(NamedTuple):
    """M, as of a checkpoint of the controller."""

    controller: ControllerThen
    maximum: int


class PartitionDue(NamedTuple):
    """A partition's level-one objects in its newest checkpoint and in one a grace period before."""

    group: int
    removed: Sequence[str]
    """Unique parts of objects that are no longer named, and need not be gone yet."""
    due_term: int | None
    """The term it was in a grace ago; None when no checkpoint is so old."""
    overdue: Sequence[str]
    """Those of `removed` that could have gone a grace ago."""


@dataclass
class ClusterHistory:
    """The readable checkpoints of one cluster, in log order of each group."""

    controllers: list[ControllerThen] = field(default_factory=list)
    partitions: dict[int, list[PartitionThen]] = field(default_factory=dict)

    def rounds(self) -> list[Round]:
        """M at each of the controller's checkpoints; the last stands for the newest of every group."""
        found = []
        for controller in self.controllers:
            last = controller is self.controllers[-1]
            maximum = controller.cluster_epoch - 1
            for group, creation_epoch in controller.partitions.items():
                known = [one for one in self.partitions.get(group, ()) if last or one.time <= controller.time]
                # One that was not heard of then holds back what is older than itself.
                of_partition = known[-1].max_collectable if known else creation_epoch - 1
                maximum = min(maximum, of_partition)
            found.append(Round(controller, maximum))
        return found

    def due(self, grace: Grace) -> Round | None:
        """The round by whose M level zero should be collected by now.

        None when no checkpoint is old enough, or when collecting was paused since.
        """
        rounds = self.rounds()
        if not rounds or self.paused(grace):
            return None
        if grace.epochs is not None:
            return rounds[-1]._replace(maximum=rounds[-1].maximum - grace.epochs)
        latest = rounds[-1].controller.time - grace.ms
        return next((one for one in reversed(rounds) if one.controller.time <= latest), None)

    def paused(self, grace: Grace) -> bool:
        """Whether collecting was paused at any checkpoint within the grace before the newest, or at the one
        before that."""
        for controller in reversed(self.controllers):
            if controller.paused:
                return True
            if controller.time <= self.controllers[-1].time - grace.ms:
                break
        return False

    def held(self) -> int | None:
        """Upper bound of M at every node by now; None if nothing is known to hold M back.

        The newest checkpoints' leases hold it below what they name. Nothing else is known of the time since
        they were taken, but that while collecting is paused it counts as it was when it was paused.
        """
        named = (checkpoints[-1].oldest_named for checkpoints in self.partitions.values())
        bounds = [oldest - 1 for oldest in named if oldest is not None]
        while_paused = list(takewhile(lambda one: one.controller.paused, reversed(self.rounds())))
        bounds += [one.maximum for one in while_paused[-1:]]
        return min(bounds, default=None)

    def partitions_due(self, grace: Grace) -> list[PartitionDue]:
        """For each partition what of its level-one objects should be gone by now."""
        due = []
        for group, checkpoints in self.partitions.items():
            newest = checkpoints[-1]
            old = [one for one in checkpoints if one.time <= newest.time - grace.ms]
            then = old[-1] if old else None
            overdue = set(newest.removed).intersection(then.removable) if then else set()
            due.append(PartitionDue(group, newest.removed, then.term if then else None, sorted(overdue)))
        return due


COLUMNS: Final = (
    "root", "group", "log_index", "node", "kind", "time", "state_term", "cluster_epoch", "next_group",
    "max_collectable", "oldest_named", "removed", "removable", "collection_paused", "partitions",
    "deleted_topics",
)  # fmt: skip
"""Columns of documents.SCHEMA that are needed here."""


def histories(rows: Iterable[Any], clusters: int) -> list[ClusterHistory]:
    """One for each cluster, from rows of readable documents with COLUMNS. Of replicas that differ the lowest
    M(p) counts."""
    found = [ClusterHistory() for _ in range(clusters)]
    ordered = sorted(rows, key=lambda row: (row["group"], row["log_index"], row["max_collectable"] or 0))
    for row in ordered:
        history = found[row["root"]]
        if row["kind"] == "controller":
            if not history.controllers or history.controllers[-1].log_index != row["log_index"]:
                history.controllers.append(_controller(row))
        elif row["kind"] == "partition":
            checkpoints = history.partitions.setdefault(row["group"], [])
            if not checkpoints or checkpoints[-1].log_index != row["log_index"]:
                checkpoints.append(_partition(row))
    return found


def _controller(row: Any) -> ControllerThen:
    return ControllerThen(
        row["log_index"],
        row["time"],
        row["cluster_epoch"],
        row["next_group"],
        row["collection_paused"],
        {partition["group"]: partition["creation_epoch"] for partition in row["partitions"]},
        row["deleted_topics"],
    )


def _partition(row: Any) -> PartitionThen:
    return PartitionThen(
        row["group"],
        row["log_index"],
        row["time"],
        row["state_term"],
        row["max_collectable"],
        row["oldest_named"],
        row["removed"],
        row["removable"],
    )
