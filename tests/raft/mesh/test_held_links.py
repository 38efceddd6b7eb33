"""Connections that wait until a folder's identity is on the disk: one for each peer, and none left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import msgpack
import pytest

from strandline.node.raft.data_folder import NO_FOLDER, Folder, Standing
from strandline.node.raft.folder_file import FolderKey
from strandline.node.raft.mesh.frames import data_frame
from strandline.node.raft.mesh.link import Link
from strandline.node.raft.mesh.problems import MeshReason
from strandline.node.raft.mesh.strangers import Strangers
from tests.raft.memory_folder import memory_folder
from tests.raft.mesh.link_pair import LinkPair

OLD = FolderKey(1, 0xC)
NEW = FolderKey(2, 0xD)


@dataclass
class HeldLink:
    """A link that came up, as far as `Strangers` knows one."""

    peer: int
    standing: Standing
    name: str = ""
    closing: bool = False
    held: bool = False
    failed: list[MeshReason] = field(default_factory=list)
    handshake: Any = field(default_factory=lambda: SimpleNamespace(told=Standing(FolderKey(0, 1))))

    def hold(self) -> None:
        self.held = True

    def release(self) -> None:
        self.held = False

    def close(self) -> None:
        self.closing = True

    def fail(self, reason: MeshReason, text: str) -> None:
        if not self.closing:
            self.failed.append(reason)
            self.close()


class Scene:
    """The strangers of node 1, whose disk ends a write when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], object], Callable[[Any, Exception | None], None]]] = []
        self.folder: Folder = memory_folder(1)
        self.folder._run_blocking = lambda job, done: self.jobs.append((job, done))
        self.now = 0.0
        self.strangers = Strangers(lambda: self.now)
        self.strangers.folder = self.folder
        self.came: list[str] = []

    def admit(self, name: str, peer: int = 3, key: FolderKey = OLD) -> HeldLink:
        link = HeldLink(peer, Standing(key), name)
        self.strangers.admit(cast(Link, link), lambda link: self.came.append(cast(HeldLink, link).name))
        return link

    def end_write(self, error: Exception | None = None) -> None:
        job, done = self.jobs.pop(0)
        if error is None:
            job()
        done(None, error)


def test_connection_that_waited_longer_takes_no_newer_ones_place() -> None:
    """It may be of a process that is gone, and what it brought comes behind what the present one sent."""
    scene = Scene()
    first = scene.admit("first")
    second = scene.admit("second")
    scene.folder.learn({9: OLD})
    scene.end_write()
    assert second.held
    third = scene.admit("third")
    while scene.jobs:
        scene.end_write()
    assert scene.came == ["third"]
    assert [first.closing, second.closing, third.closing] == [True, True, False]
    assert not third.held


def test_disk_that_hangs_keeps_no_connections_of_before() -> None:
    """Each is given up after a while and made again, for as long as it takes."""
    scene = Scene()
    for number in range(100):
        for peer in (2, 3):
            scene.admit(f"{peer} {number}", peer).fail(MeshReason.NOT_NOTED, "too long")
    last = [scene.admit(f"{peer} last", peer) for peer in (2, 3)]
    assert len(scene.folder._waiting) <= 2
    while scene.jobs:
        scene.end_write()
    assert sorted(scene.came) == ["2 last", "3 last"]
    assert not any(link.closing or link.held for link in last)


def test_one_that_comes_while_a_write_is_under_way_waits_for_the_next() -> None:
    scene = Scene()
    two = scene.admit("2", 2)
    three = scene.admit("3", 3)
    again = scene.admit("2 again", 2)
    assert len(scene.jobs) == 1
    scene.end_write()
    assert (scene.came, two.closing, three.held, again.held) == ([], True, True, True)
    scene.end_write()
    assert sorted(scene.came) == ["2 again", "3"]
    assert not scene.jobs
    assert [three.held, again.held] == [False, False]


def test_connection_that_ended_before_its_write_did_does_not_count() -> None:
    """It would stand for the peer for ever: that it ended was said before."""
    scene = Scene()
    scene.admit("2", 2).close()
    scene.end_write()
    assert scene.came == []


def test_write_that_fails_ends_what_waits_and_the_next_connection_tries_again() -> None:
    scene = Scene()
    two, three = scene.admit("2", 2), scene.admit("3", 3)
    scene.end_write(OSError(28, "No space left on device"))
    while scene.jobs:
        scene.end_write(OSError(28, "No space left on device"))
    assert two.failed == three.failed == [MeshReason.NOT_NOTED]
    assert scene.came == []
    scene.admit("2", 2)
    scene.end_write()
    assert scene.came == ["2"]


def test_folder_that_is_replaced_while_its_identity_is_written_is_not_let_in() -> None:
    scene = Scene()
    old = scene.admit("old")
    scene.folder.learn({3: NEW})
    while scene.jobs:
        scene.end_write()
    assert scene.came == []
    assert old.failed == [MeshReason.OTHER_FOLDER]
    scene.admit("new", key=NEW)
    while scene.jobs:
        scene.end_write()
    assert scene.came == ["new"]


def test_one_that_fails_with_the_end_of_a_write_keeps_no_other_from_hearing_of_it() -> None:
    """The controller's list would never be written again, nor this node's vote."""
    scene = Scene()
    heard: list[object] = []

    def fail(error: Exception | None) -> None:
        heard.append("failing")
        raise ZeroDivisionError

    scene.folder.meet(2, Standing(OLD))
    scene.folder.store(fail)
    scene.folder.meet(3, Standing(OLD))
    scene.folder.store(fail)
    scene.folder.store(heard.append)
    with pytest.raises(ZeroDivisionError):
        scene.end_write()
    with pytest.raises(ZeroDivisionError):
        scene.end_write()
    assert heard == ["failing", "failing", None]
    assert not scene.jobs


def test_folder_that_is_being_let_in_is_not_said_to_have_been_replaced() -> None:
    """It has heard of its count from one node, and another still waits for the groups to leave."""
    scene = Scene()
    scene.folder.learn({3: FolderKey(2, NO_FOLDER)})
    scene.admit("too early", key=NEW)
    said = [scene.strangers.known[3].replaced]
    scene.folder.learn({3: FolderKey(3, 0xE)})
    scene.admit("too late", key=NEW)
    assert [*said, scene.strangers.known[3].replaced] == [False, True]
    assert scene.came == []


@pytest.fixture
def pair() -> Iterator[LinkPair]:
    loop = asyncio.new_event_loop()
    yield LinkPair(loop)
    loop.close()


def test_frames_that_come_with_the_last_one_of_the_handshake_wait_for_a_held_link(pair: LinkPair) -> None:
    """A peer sends at once, and one read may have its welcome and what it sent next."""
    pair.shake()
    pair.acceptor.write(data_frame(msgpack.packb("first")))
    pair.acceptor.write(data_frame(msgpack.packb("second")))
    pair.carry()
    assert pair.dialler.up
    assert (pair.owner.taken, pair.there.reads) == ([], False)
    pair.dialler.release()
    assert pair.owner.taken == ["first", "second"]
    assert pair.there.reads
    pair.acceptor.write(data_frame(msgpack.packb("third")))
    pair.carry()
    assert pair.owner.taken[2:] == ["third"]


def test_link_that_is_closed_while_it_is_held_gives_nothing_out(pair: LinkPair) -> None:
    pair.shake()
    pair.acceptor.write(data_frame(msgpack.packb("first")))
    pair.carry()
    pair.dialler.close()
    pair.dialler.release()
    assert (pair.owner.taken, pair.there.reads) == ([], False)


def test_half_a_frame_waits_with_the_others(pair: LinkPair) -> None:
    pair.shake()
    for word in ("first", "second"):
        pair.acceptor.write(data_frame(msgpack.packb(word)))
    sent = pair.here.sent()
    pair.dialler.data_received(sent[:-3])
    pair.dialler.release()
    assert pair.owner.taken == ["first"]
    pair.dialler.data_received(sent[-3:])
    assert pair.owner.taken == ["first", "second"]


def test_owner_that_fails_at_a_kept_frame_ends_the_link(pair: LinkPair) -> None:
    """As it does where the frame is taken as it comes; else no more of that peer would be read."""
    pair.shake()
    for word in ("first", "second"):
        pair.acceptor.write(data_frame(msgpack.packb(word)))
    pair.carry()

    def fail(link: Link, payload: object) -> None:
        raise ZeroDivisionError

    pair.owner.link_data = fail  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        pair.dialler.release()
    assert pair.dialler.closing
