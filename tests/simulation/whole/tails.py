"""A reader of the storage that follows tails, while all goes wrong: what it sees is a state that there was.

The reader is the product's; it has the bucket as it is, at once. Each state that it comes to is held against
the log, applied anew from its beginning. When all is over it has to have everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from strandline.snapshot.document import SnapshotDocument
from strandline.snapshot.spark.newest import NewestCheckpoints
from strandline.snapshot.spark.options import SourceError
from strandline.snapshot.storage import ObjectMissing, Storage
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from strandline.statemachine.partition.extent import ObjectExtent
from strandline.statemachine.partition.level_one import level_one_name
from strandline.statemachine.partition.partition import PartitionStateMachine
from tests.simulation.store import SimStore
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.objects import Place
from tests.simulation.whole.replays import Replays

LOOK_SECONDS: Final = 0.7
WHOLE_EVERY: Final = 5
"""Looks at checkpoints, too; the others are at tails alone."""


class BucketNow(Storage):
    """The bucket as it is at this moment, for a reader that takes no time."""

    def __init__(self, store: SimStore) -> None:
        self.url = "memory://"
        self._store = store

    def folders(self, prefix: str) -> list[str]:
        return sorted({name.removeprefix(prefix).partition("/")[0] for name in self._store.keys(prefix)})

    def get(self, key: str) -> bytes:
        try:
            return self._store.objects[key]
        except KeyError:
            raise ObjectMissing(f"{self.url}: there is no object {key}") from None

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.get(key)[start : start + length]

    def list(self, prefix: str) -> list[str]:
        return self._store.keys(prefix)

    def sizes(self, prefix: str) -> dict[str, int]:
        raise NotImplementedError

    def versions(self, prefix: str) -> dict[str, str]:
        raise NotImplementedError


class TailReader:
    """Looks now and then, from `start` on."""

    def __init__(self, cluster: WholeCluster) -> None:
        self._cluster = cluster
        self._reader = NewestCheckpoints(BucketNow(cluster.store), "simulated")
        self._replays = Replays(cluster.ledger)
        self._seen: dict[int, tuple[int, int, int]] = {}
        """What the reader sees of each partition: next, start and last stable offset."""
        self.looks = self.states = 0

    def start(self) -> None:
        self._again()

    def restored(self, documents: Iterable[SnapshotDocument]) -> None:
        """Judge from now on what the cluster that begins with these states publishes."""
        self._replays.begin_with(documents)
        self._seen.clear()

    def _again(self) -> None:
        self.look(whole=self.looks % WHOLE_EVERY == 0)
        self._cluster.world.call_later(LOOK_SECONDS, self._again)

    def look(self, *, whole: bool) -> None:
        """Read what is new, and judge it."""
        ledger = self._cluster.ledger
        self.looks += 1
        try:
            self._reader.look(whole=whole)
            topics = self._reader.controller().topics
        except SourceError as error:
            if "is published" not in str(error):
                ledger.broken("tails", str(error))
            return
        groups = [partition.group for topic in topics.values() for partition in topic.partitions]
        known = [group for group in groups if isinstance(ledger.objects.newest(group), PartitionStateMachine)]
        self._reader.follow(known)
        for group in known:
            try:
                found = self._reader.of_group(group, lambda name, document: (name, document))
            except SourceError as error:
                ledger.broken("tails", str(error))
                return
            if found is not None:
                self._judge(group, *found)

    def _judge(self, group: int, name: str, document: SnapshotDocument) -> None:
        ledger = self._cluster.ledger
        if document.index < self._replays.begins(group):
            return  # of the life before, and the nodes of this one have published nothing yet
        replayed = self._replays.at(PartitionStateMachine.kind, group, document.index)
        if not isinstance(replayed, PartitionStateMachine):
            ledger.broken("tails", f"{name}: group {group} goes back to entry {document.index}")
            return
        self.states += 1
        if document.state != replayed.snapshot():
            ledger.broken("tails", f"{name}: group {group} has another state after entry {document.index}")
        self._seen[group] = _visible(replayed)

    def behind(self) -> str | None:
        """The partition of which the reader has not seen all, None if there is none."""
        self.look(whole=True)
        for group, place in self._cluster.ledger.objects.places().items():
            newest = self._cluster.ledger.objects.newest(group)
            if group == CONTROLLER_GROUP or newest is None:
                continue
            if self._seen.get(group) != _visible(newest):
                return f"{place} is {_visible(newest)}, seen as {self._seen.get(group)}"
            reached = self._replays.reached(group)
            assert isinstance(reached, PartitionStateMachine)
            missing = self._missing(place, reached)
            if missing is not None:
                return f"{place}: {missing} is named, and is gone"
        return None

    def _missing(self, place: Place, machine: PartitionStateMachine) -> str | None:
        """An object that a state names and that is not there."""
        zero = (one.object_name for one in machine.extents if isinstance(one, ObjectExtent))
        one = (level_one_name(*place, extent.term, extent.unique) for extent in machine.level_one)
        return next((name for name in (*zero, *one) if name not in self._cluster.store.objects), None)

    def tally(self) -> Mapping[str, int]:
        """What there was to judge, for the report."""
        return {"looks at tails": self.looks, "states of tails": self.states}


def _visible(machine: PartitionStateMachine) -> tuple[int, int, int]:
    return machine.next_offset, machine.start_offset, machine.last_stable_offset
