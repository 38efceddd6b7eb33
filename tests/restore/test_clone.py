"""A clone is made of what a restore point names, and its source is only read."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from strandline.node.objectstore.storage_owner import KEY, Owner
from strandline.node.objectstore.store import ObjectStore
from strandline.node.restore import clone
from strandline.node.restore.reading import CannotRestore
from strandline.node.restore.stored_point import StoredPoint, read_point
from strandline.node.restore.take_over import record_attempt, take_over
from strandline.statemachine.controller.controller_snapshot import load
from strandline.statemachine.object_names import object_name
from strandline.statemachine.partition.epoch_window import EpochWindow
from strandline.statemachine.partition.partition_commands import Append
from strandline.statemachine.partition.placeholder import Placeholder
from tests.checkpoints.cluster import take
from tests.checkpoints.harness import CLUSTER, world
from tests.level_zero.samples import run
from tests.restore.stored import OWNER, UNIQUE, Stored
from tests.simulation.store import SimStore
from tests.simulation.world import World

NAMED = object_name(1, UNIQUE)


class Cloned:
    """A storage whose point names an object, and an empty one beside it."""

    def __init__(self, made: World) -> None:
        self.stored = Stored(made)
        for replica in self.stored.cluster.replicas[1].values():
            replica.apply(Append(EpochWindow(1, 1, 1), [Placeholder(1, 1_000, 10, 1, 0, UNIQUE)]))
        assert take(made, self.stored.cluster).restore_point
        self.stored.objects[NAMED] = b"a batch..."
        self.stored.objects[object_name(2, UNIQUE)] = b"of later"
        self.stored.objects["views/7/8/1"] = b"a view's state"
        self.made = made
        self.target = SimStore(made)
        self.found = self.stored.read()

    def do(self, work: Callable[[ObjectStore], Coroutine[Any, Any, Any]]) -> Any:
        """With the target."""
        node = self.stored.cluster.nodes[0]
        return run(self.made, node, work(self.target.client(node)))

    def check(self, name: str = "trial") -> bool:
        there: bool = self.do(lambda target: clone.check_target(target, self.found, name))
        return there

    def copy(self, tell: Callable[[str], None] = lambda _: None) -> None:
        node = self.stored.cluster.nodes[0]
        source = self.stored.cluster.store.client(node)
        self.do(lambda target: clone.copy(source, target, self.found, "trial", tell))

    def read(self) -> StoredPoint:
        point: StoredPoint = self.do(lambda store: read_point(store))
        return point


def test_a_clone_has_what_the_point_names_under_its_own_name_and_the_source_is_as_it_was() -> None:
    with world() as made:
        cloned = Cloned(made)
        before = dict(cloned.stored.objects)
        assert cloned.check() is False
        told: list[str] = []
        cloned.copy(told.append)
        assert dict(cloned.stored.objects) == before
        assert told == ["copying: 1 of 1 objects"]
        assert cloned.target.objects[NAMED] == b"a batch..."
        assert cloned.target.objects["views/7/8/1"] == b"a view's state"
        assert object_name(2, UNIQUE) not in cloned.target.objects, "nothing but what the point names"
        read = cloned.read()
        assert (read.owner, read.point.number) == (
            Owner("trial", OWNER.incarnation),
            cloned.found.point.number,
        )
        assert read.partitions == cloned.found.partitions
        assert load(read.documents[0].state).cluster_id == "trial"
        assert load(cloned.stored.read().documents[0].state).cluster_id != "trial"
        assert not any(CLUSTER in name for name in cloned.target.objects), "no name has the source's"


def test_a_copy_that_broke_off_is_no_storage_and_is_made_again() -> None:
    with world() as made:
        cloned = Cloned(made)
        cloned.copy()
        whole = dict(cloned.target.objects)
        assert cloned.check() is True, "nothing is copied twice"
        del cloned.target.objects[KEY]
        assert cloned.check() is False
        with pytest.raises(CannotRestore):
            cloned.read()
        cloned.copy()
        assert dict(cloned.target.objects) == whole


def test_what_lies_in_the_target_already_is_refused() -> None:
    with world() as made:
        cloned = Cloned(made)
        cloned.target.objects["mine"] = b""
        with pytest.raises(CannotRestore, match="is not empty: it has 'mine'"):
            cloned.check()
        del cloned.target.objects["mine"]
        cloned.copy()
        read = cloned.read()
        cloned.do(lambda store: record_attempt(store, read, now_ms=1, rng=made.rng("restore")))
        assert cloned.check() is True, "a restore that broke off here is begun again"
        read = cloned.read()
        restored = cloned.do(lambda store: record_attempt(store, read, now_ms=1, rng=made.rng("again")))
        cloned.do(lambda store: take_over(store, read, restored))
        with pytest.raises(CannotRestore, match=r"was restored from this clone already: .* if its restore"):
            cloned.check()


def test_the_nodes_of_the_point_that_was_copied_are_the_source_s() -> None:
    """They may run: a clone that is lost before it has a point of its own is restored from that one again."""
    with world() as made:
        cloned = Cloned(made)
        cloned.copy()
        read = cloned.read()
        assert cloned.do(lambda store: clone.is_of_source(store, read)) is True
        own = replace(read, point=replace(read.point, number=read.point.number + 1))
        assert cloned.do(lambda store: clone.is_of_source(store, own)) is False
        assert cloned.stored.do(lambda store: clone.is_of_source(store, cloned.found)) is False


def test_a_target_that_was_begun_from_another_point_is_refused() -> None:
    with world() as made:
        cloned = Cloned(made)
        cloned.copy()
        assert take(made, cloned.stored.cluster).restore_point
        cloned.found = cloned.stored.read()
        with pytest.raises(CannotRestore, match="was begun from another restore point"):
            cloned.check()


def test_a_source_without_a_point_of_documents_is_told_how_to_get_one() -> None:
    """As each in its first hour; it has tail points, and its data folders are where they were."""
    with world() as made:
        cloned = Cloned(made)
        for name in [name for name in cloned.stored.objects if "/points/" in name]:
            del cloned.stored.objects[name]
        with pytest.raises(CannotRestore, match="of which alone a clone is made") as refusal:
            cloned.stored.do(lambda store: read_point(store, leased=True))
        assert refusal.value.cure == "take one with `strandline checkpoint`, and repeat this"


def test_an_object_that_goes_while_it_is_copied_is_named_and_leaves_no_storage() -> None:
    with world() as made:
        cloned = Cloned(made)
        del cloned.stored.objects[NAMED]
        with pytest.raises(CannotRestore, match=f"{NAMED}, which the restore point names, was deleted"):
            cloned.copy()
        assert KEY not in cloned.target.objects
