"""A bucket with restore points, for tests of what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from strandline.node.objectstore.storage_owner import KEY, Owner
from strandline.node.objectstore.store import ObjectStore
from strandline.node.restore.reading import CannotRestore
from strandline.node.restore.restored_states import RestoredCluster
from strandline.node.restore.stored_point import StoredPoint, read_point
from strandline.snapshot.document import SnapshotDocument
from strandline.snapshot.names import snapshot_name
from strandline.snapshot.restore_point import GroupState, RestorePoint, point_name
from strandline.statemachine.object_names import object_id
from tests.checkpoints.cluster import Cluster, take
from tests.checkpoints.harness import CLUSTER
from tests.level_zero.samples import run
from tests.simulation.world import World

OWNER = Owner(CLUSTER, "first")
UNIQUE = object_id(1, 1, bytes(range(16)))
Documents = dict[int, SnapshotDocument]


class Stored:
    """A bucket with one restore point of a cluster of five partitions."""

    def __init__(self, made: World) -> None:
        self.made = made
        self.cluster = Cluster(made)
        self.objects = self.cluster.store.objects
        self.objects[KEY] = OWNER.document().encode()
        self.number = take(made, self.cluster).restore_point or 0
        assert self.number

    def do(self, work: Callable[[ObjectStore], Coroutine[Any, Any, Any]]) -> Any:
        node = self.cluster.nodes[0]
        return run(self.made, node, work(self.cluster.store.client(node)))

    def read(self, number: int | None = None) -> StoredPoint:
        found: StoredPoint = self.do(lambda store: read_point(store, number))
        return found

    def take_again(
        self, point: RestorePoint, made: RestoredCluster, documents: Documents, now_ms: int
    ) -> int:
        """A point of the restored cluster, with the states that it began with."""
        number = 1 + max(int(name.rpartition("/")[2]) for name in self.objects if "/points/" in name)
        groups = tuple(GroupState(group, one.index, 1) for group, one in sorted(documents.items()))
        for group, one in documents.items():
            self.objects[snapshot_name(CLUSTER, group, one.index, 1)] = one.encode()
        taken = replace(
            point,
            number=number,
            incarnation=made.incarnation,
            taken_ms=now_ms,
            attempts=number,
            groups=groups,
        )
        self.objects[point_name(CLUSTER, number)] = taken.encode()
        return number

    def refused(self, number: int | None = None) -> str:
        before = dict(self.objects)
        with pytest.raises(CannotRestore) as refusal:
            self.read(number)
        assert dict(self.objects) == before
        return str(refusal.value)
