"""The keeper of a node's data folder, on a controller and a disk that a test moves by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strandline.node.controller.folder_keeper import LOOK_SECONDS, FolderKeeper
from strandline.node.objectstore.storage_owner import ForeignStorage, Owner
from strandline.node.objectstore.store import ObjectNotFound
from strandline.node.raft.data_folder import NO_FOLDER, Stored
from strandline.node.raft.folder_file import FolderKey
from strandline.statemachine.controller.controller_state import NodeFolder, Replacement
from tests.raft.memory_folder import memory_folder

FULL = OSError(28, "No space left on device")


class Timers:
    """A loop, as far as the keeper needs one without its task."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, seconds: float, call: Callable[[], None]) -> Any:
        timer = (seconds, call)
        self.due.append(timer)
        return SimpleNamespace(cancel=lambda: self.due.remove(timer) if timer in self.due else None)

    def go_on(self) -> None:
        _, call = self.due.pop(0)
        call()


class Scene:
    def __init__(self) -> None:
        self.folder = memory_folder(1)
        self.writes: list[Stored] = []
        self.known: list[dict[int, FolderKey]] = []
        self.votes: list[tuple[int, str]] = []
        self.fatal: list[Exception] = []
        self.machine = SimpleNamespace(folders={3: NodeFolder(1, 0xC)}, replacement=None, incarnation="i")
        self.timers = Timers()
        host = SimpleNamespace(
            node_id=1,
            folder=self.folder,
            know_folders=self.known.append,
            give_vote=lambda *given: self.votes.append(given),
            store_folder=self.writes.append,
        )
        controller = SimpleNamespace(machine=self.machine, leader=1)
        owned = SimpleNamespace(owner="this cluster")
        self.keeper = FolderKeeper(
            cast(Any, host),
            cast(Any, controller),
            cast(Any, SimpleNamespace(follow=lambda: None)),
            cast(Any, SimpleNamespace(joins=False)),
            cast(Any, None),
            cast(Any, owned),
            loop=cast(Any, self.timers),
            on_owned=lambda: None,
            on_fatal=self.fatal.append,
        )
        self.change = self.keeper._follow

    def end_write(self, error: Exception | None = None) -> None:
        self.writes.pop(0)(error)


def test_list_that_the_disk_does_not_take_is_written_again_until_it_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    scene.change()
    for _ in range(3):
        scene.end_write(FULL)
        assert [seconds for seconds, _ in scene.timers.due] == [LOOK_SECONDS]
        scene.timers.go_on()
    scene.end_write()
    assert not scene.timers.due
    assert not scene.writes
    assert len([one for one in caplog.records if "cannot store the controller's list" in one.message]) == 1


def test_what_changes_while_the_list_is_written_is_one_more_write() -> None:
    scene = Scene()
    for _ in range(5):
        scene.change()
    assert len(scene.writes) == 1
    scene.end_write()
    assert len(scene.writes) == 1
    scene.end_write()
    assert not scene.writes


def test_folder_that_is_replaced_while_the_node_stops_is_cut_off_all_the_same() -> None:
    """Its leaderships and votes count for a few seconds more."""
    scene = Scene()
    scene.change()
    scene.keeper.close()
    scene.machine.folders[3] = NodeFolder(2, 0xD)
    scene.change()
    assert scene.known[-1] == {3: FolderKey(2, 0xD)}


def test_neither_folder_is_known_while_groups_have_to_leave_the_one_before_out() -> None:
    scene = Scene()
    scene.machine.folders[3] = NodeFolder(2, 0xD)
    scene.machine.folders[2] = NodeFolder(1, 0xB)
    scene.machine.replacement = Replacement(3, 0xD, 7, frozenset({0, 1}), frozenset())
    scene.change()
    scene.machine.replacement = Replacement(3, 0xD, 7, frozenset(), frozenset({0, 1}))
    scene.change()
    two = FolderKey(1, 0xB)
    assert scene.known == [
        {2: two, 3: FolderKey(2, NO_FOLDER)},
        {2: two, 3: FolderKey(2, 0xD)},
    ]


def test_vote_comes_with_the_controllers_word_for_this_folder_alone() -> None:
    scene = Scene()
    scene.change()
    scene.machine.folders[1] = NodeFolder(2, 0xF)
    scene.change()
    assert scene.votes == []
    scene.machine.folders[1] = NodeFolder(3, scene.folder.id)
    scene.change()
    assert scene.votes == [(3, "i")]
    assert scene.fatal == []


class EmptyStore:
    """Storage that says nothing, as a folder that is not mounted."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    async def get(self, key: str) -> bytes:
        if key not in self.objects:
            raise ObjectNotFound("get", key)
        return self.objects[key]

    async def list(self, *_: object) -> list[str]:
        return []

    async def put(self, key: str, parts: Sequence[bytes]) -> None:
        self.objects[key] = b"".join(parts)


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("registered", [False, True])
def test_only_a_founder_makes_storage_the_clusters(refused: bool, registered: bool) -> None:
    """A replaced node gets the log from its beginning, at which the cluster seems new, and not whole at once:
    the entry that names its folder may come after it has looked at the storage."""
    scene, store = Scene(), EmptyStore()
    scene.machine.nodes = {2: "registered"} if registered else {}
    host = cast(Any, scene.keeper._host)
    host.cluster_id = "harbour"
    host.mesh = SimpleNamespace(strangers=SimpleNamespace(was_disowned=refused))
    scene.keeper._store = cast(Any, store)
    scene.keeper._owned.owner = Owner("harbour", "i")
    if refused or registered:
        with pytest.raises(ForeignStorage, match="nothing there says that it belongs to cluster 'harbour'"):
            asyncio.run(scene.keeper._look())
        assert store.objects == {}
    else:
        assert asyncio.run(scene.keeper._look()) is False
        assert scene.keeper.stored == Owner("harbour", "i")


def test_folder_that_another_one_took_the_place_of_ends_its_node() -> None:
    scene = Scene()
    scene.folder.settle(votes=True, generation=1, incarnation="i")
    scene.folder.store(lambda _: None)
    scene.machine.folders[1] = NodeFolder(2, 0xF)
    scene.change()
    [error] = scene.fatal
    assert "000000000000000f has taken the place of this one" in str(error)
    assert (scene.known, scene.votes, scene.writes) == ([], [], [])


def test_newcomer_says_that_its_own_disk_is_what_it_waits_for() -> None:
    """Not that it waits for other nodes, and should be let in by them: it has been."""
    scene = Scene()
    folder = scene.folder
    folder.newcomer = True
    scene.keeper.stored = Owner("blue", "i")
    assert "it waits for the nodes that have that cluster's log" in str(scene.keeper.waits_for())
    scene.machine.folders[1] = NodeFolder(1, folder.id)
    folder.settle(votes=True, generation=1, incarnation="i")
    scene.change()
    assert "does not take the node's vote: the write is under way" in str(scene.keeper.waits_for())
    scene.end_write(FULL)
    assert "does not take the node's vote: [Errno 28] No space left on device: free" in str(
        scene.keeper.waits_for()
    )
    folder.store(lambda _: None)
    folder.newcomer = False
    assert scene.keeper.waits_for() is None
