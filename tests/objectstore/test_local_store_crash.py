"""A crash between any two disk operations: what was acknowledged is there, and nothing is there in part."""

from __future__ import annotations

import pytest

from strandline.node.objectstore.local_store import LocalStore
from strandline.node.objectstore.store import ObjectNotFound
from tests.level_zero.samples import run
from tests.simulation.node import SimNode
from tests.simulation.world import World

KEYS = [f"l0/0001/{epoch:020d}/1-{number}" for epoch in (1, 2) for number in range(3)]
DELETED = KEYS[0]
SEEDS = 12


def content(key: str) -> list[bytes]:
    return [key.encode() * 200, b"end"]


class Writer:
    """Puts the objects one after the other, deletes the first, and notes what was acknowledged."""

    store_class = LocalStore

    def __init__(self) -> None:
        self.stored: list[str] = []
        self.deleting = self.deleted = False

    def main(self, node: SimNode) -> None:
        node.spawn(self.work(node))

    async def work(self, node: SimNode) -> None:
        store = self.opened(node)
        for key in KEYS:
            await store.put(key, content(key))
            self.stored.append(key)
        self.deleting = True
        await store.delete_many([DELETED])
        self.deleted = True
        # So that there are moments to crash at once the deletion was acknowledged.
        await store.put(KEYS[-1], content(KEYS[-1]))

    def opened(self, node: SimNode) -> LocalStore:
        return self.store_class.open(node.disk, "/s", owner="node-1", loop=node.loop, executor=node.executor)


def operations(writer: Writer) -> int:
    with World(0) as world:
        node = world.add_node(1)
        node.start(writer.main)
        world.run(10.0)
        world.check()
        assert writer.deleted
        return node.disk.operations


def crash(writer: Writer, operation: int, kind: str, seed: int) -> None:
    """Crash in one operation, start anew, and compare what is there with what was promised."""
    with World(seed) as world:
        node = world.add_node(1)
        node.disk.crash_at(operation, kind)
        node.start(writer.main)
        world.run(10.0)
        assert not node.alive, "the crash did not happen"
        node.start(lambda _: None)
        world.run(world.now)
        store = writer.opened(node)
        for key in KEYS:
            try:
                data = bytes(run(world, node, store.get(key)))
            except ObjectNotFound:
                gone = key == DELETED and writer.deleting
                assert key not in writer.stored or gone, f"{key} was acknowledged and is not there"
            else:
                assert data == b"".join(content(key)), f"{key} is there in part"
                assert not (key == DELETED and writer.deleted), "a deleted object came back"
        swept = ("/.partial/node-1/", "/.partial/node-1.apart/")
        assert not [path for path in node.disk.snapshot() if any(one in path for one in swept)]
        for key in KEYS:
            run(world, node, store.put(key, content(key)))
        assert run(world, node, store.list("", "", 100)) == KEYS
        world.check()


@pytest.mark.parametrize("kind", ["kill", "power"])
def test_a_crash_in_any_disk_operation_loses_nothing_acknowledged(kind: str) -> None:
    total = operations(Writer())
    assert total > 40
    for operation in range(1, total + 1):
        for seed in range(1 if kind == "kill" else SEEDS):
            crash(Writer(), operation, kind, seed)


class Unsynced(LocalStore):
    """Never syncs what it wrote."""

    def _write(self, path: str, parts: object) -> None:
        file = self._disk.open(path, create=True)
        file.pwrite(b"".join(parts), 0)  # type: ignore[arg-type]
        file.close()


class InPlace(LocalStore):
    """Writes under the object's own name."""

    def _put(self, key: str, parts: object, number: int) -> None:
        folder = self._path(key).rpartition("/")[0]
        self._make_folder(folder)
        if not self._disk.exists(self._path(key)):
            self._write(self._path(key), parts)  # type: ignore[arg-type]
        self._disk.sync_dir(folder)


class FolderUnsynced(LocalStore):
    """Renames and does not sync the folder."""

    def _put(self, key: str, parts: object, number: int) -> None:
        temporary = self._unfinished.path(number)
        self._write(temporary, parts)  # type: ignore[arg-type]
        self._rename(temporary, self._path(key), self._path(key).rpartition("/")[0])


@pytest.mark.parametrize("sabotaged", [Unsynced, InPlace, FolderUnsynced])
def test_a_store_that_skips_a_step_is_caught(sabotaged: type[LocalStore]) -> None:
    class Sabotaged(Writer):
        store_class = sabotaged

    def every_crash() -> None:
        for operation in range(1, operations(Sabotaged()) + 1):
            for seed in range(SEEDS):
                crash(Sabotaged(), operation, "power", seed)

    with pytest.raises(AssertionError, match=r"is not there|is there in part"):
        every_crash()
