"""A node's end of a version's process: the way it is told, and what is known once it has failed."""

from __future__ import annotations

import asyncio
import errno
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from strandline.node.objectstore.opening import StorePlace
from strandline.node.views import view_host, view_process
from strandline.node.views.view_host import ViewHost
from strandline.node.views.view_login import Way
from strandline.node.views.view_process import VersionName, ViewProcess
from strandline.node.worker.worker_frames import BadFrame
from strandline.snapshot import extras
from strandline.statemachine.controller.controller_commands import CancelViews, encode
from strandline.statemachine.controller.view_state import ProgramVersion, ViewProgram
from tests.node.one_node import SECONDS

FAILS = """
import struct, sys, msgpack
from strandline.node.worker.worker_frames import LENGTH, framed, length_of, message_of
source = sys.stdin.buffer
start = message_of(source.read(length_of(source.read(LENGTH.size))))
said = "no broker knows " + start[5]["sasl.username"]
sys.stdout.buffer.write(framed(["status", {"phase": "ended", "failure": said}]))
sys.stdout.buffer.flush()
sys.exit(1)
"""

SAYS_ITS_WAY = """
import sys, time
from strandline.node.worker.worker_frames import LENGTH, framed, length_of, message_of
source = sys.stdin.buffer
start = message_of(source.read(length_of(source.read(LENGTH.size))))
sys.stdout.buffer.write(framed(["status", {"way": start[5]["bootstrap.servers"]}]))
sys.stdout.buffer.flush()
time.sleep(600)
"""


ASKS_FOR_A_HOLD = """
import sys, time
from strandline.node.worker.worker_frames import framed
sys.stdout.buffer.write(framed(["hold", 1, "sales", "reader", [[0, 5]], 1000]))
sys.stdout.buffer.flush()
time.sleep(600)
"""


def test_a_process_that_fails_is_begun_again_and_its_reason_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_process, "FIRST_PAUSE_SECONDS", 0.01)

    async def test() -> None:
        controller = SimpleNamespace(machine=SimpleNamespace(view_programs={}))
        one = ViewProcess(
            VersionName("p", 5, 7, True),
            StorePlace("memory:", {}, "owner"),
            "files",
            {"bootstrap.servers": "127.0.0.1:1", "sasl.username": "views", "sasl.password": "a secret"},
            cast(Any, controller),
            cast(Any, None),
            loop=asyncio.get_running_loop(),
            memory_limit=1 << 30,
            command=(sys.executable, "-c", FAILS),
        )
        try:
            async with asyncio.timeout(SECONDS):
                while one.failures < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        finally:
            await one.close()
        assert one.starts >= 2
        assert one.failure == "no broker knows views"

    asyncio.run(test())


@pytest.mark.parametrize(("end", "stay"), [("SIGBUS", False), ("SIGSEGV", False), ("SIGTERM", True)])
def test_files_of_a_process_that_one_of_their_pages_ended_are_removed(
    tmp_path: Path, end: str, stay: bool
) -> None:
    """It may have stored states before it came to that page, and so would the next ones."""
    for attempt in ("7", "8"):
        (tmp_path / attempt / "a").mkdir(parents=True)
        (tmp_path / attempt / "a" / "1.run").touch()

    async def test() -> None:
        program = f"import os, resource, signal; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); \
os.kill(os.getpid(), signal.{end})"
        one = ViewProcess(
            VersionName("p", 5, 7, True),
            StorePlace("memory:", {}, "owner"),
            str(tmp_path),
            {"bootstrap.servers": "127.0.0.1:1"},
            cast(Any, SimpleNamespace(machine=SimpleNamespace(view_programs={}))),
            cast(Any, None),
            loop=asyncio.get_running_loop(),
            memory_limit=1 << 30,
            command=(sys.executable, "-c", program),
        )
        try:
            async with asyncio.timeout(SECONDS):
                while one.starts < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        finally:
            await one.close()

    asyncio.run(test())
    assert (tmp_path / "7" / "a" / "1.run").exists() == stay
    assert (tmp_path / "8" / "a" / "1.run").exists()


def test_a_process_that_does_not_read_is_ended_before_its_words_fill_the_memory() -> None:
    async def test() -> None:
        program = ViewProgram("p", 5, None, None, 0, 0, 0, None, "", "")
        programs = {"p": program}
        machine = SimpleNamespace(view_programs=programs, topic_by_id=lambda _: None)
        one = ViewProcess(
            VersionName("p", 5, 7, True),
            StorePlace("memory:", {}, "owner"),
            "files",
            {"bootstrap.servers": "127.0.0.1:1"},
            cast(Any, SimpleNamespace(machine=machine)),
            cast(Any, None),
            loop=asyncio.get_running_loop(),
            memory_limit=1 << 30,
            command=(sys.executable, "-c", "import time; time.sleep(600)"),
        )
        try:
            async with asyncio.timeout(SECONDS):
                while one.process_id is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            for number in range(200):
                programs["p"] = program._replace(pauses=number, stopped="x" * 50_000)
                one.tell()
            async with asyncio.timeout(SECONDS):
                while not one.failures:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        finally:
            await one.close()
        # 255 is asyncio's word for a process that its transport was the first to find ended.
        assert one.failure in ("it ended with code -9", "it ended with code 255")

    asyncio.run(test())


def test_a_process_that_is_to_come_another_way_begins_again_and_has_not_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(view_process, "FIRST_PAUSE_SECONDS", 0.01)

    async def test() -> None:
        one = ViewProcess(
            VersionName("p", 5, 7, True),
            StorePlace("memory:", {}, "owner"),
            "files",
            {"bootstrap.servers": "127.0.0.1:1"},
            cast(Any, SimpleNamespace(machine=SimpleNamespace(view_programs={}))),
            cast(Any, None),
            loop=asyncio.get_running_loop(),
            memory_limit=1 << 30,
            command=(sys.executable, "-c", SAYS_ITS_WAY),
        )
        try:
            async with asyncio.timeout(SECONDS):
                while one.status.get("way") != "127.0.0.1:1":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                one.go_by({"bootstrap.servers": "127.0.0.1:2"})
                while one.status.get("way") != "127.0.0.1:2":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        finally:
            await one.close()
        assert (one.starts, one.failures) == (2, 0)

    asyncio.run(test())


def test_a_hold_that_a_process_asked_for_is_decided_before_its_end_is_over() -> None:
    async def test() -> None:
        asked, decided = asyncio.Event(), []

        async def hold(*_: Any) -> list[Any]:
            asked.set()
            await asyncio.sleep(0.1)
            decided.append(True)
            return []

        topic = SimpleNamespace(partitions=[0])
        machine = SimpleNamespace(view_programs={}, topic=lambda _: topic)
        one = ViewProcess(
            VersionName("p", 5, 7, True),
            StorePlace("memory:", {}, "owner"),
            "files",
            {"bootstrap.servers": "127.0.0.1:1"},
            cast(Any, SimpleNamespace(machine=machine)),
            cast(Any, SimpleNamespace(hold=hold)),
            loop=asyncio.get_running_loop(),
            memory_limit=1 << 30,
            command=(sys.executable, "-c", ASKS_FOR_A_HOLD),
        )
        async with asyncio.timeout(SECONDS):
            await asked.wait()
            await one.close()
        assert decided == [True]

    asyncio.run(test())


def test_a_host_lets_the_process_that_has_cut_over_go_on_as_the_live_one() -> None:
    filling, live, before = (VersionName("p", 5, *version) for version in ((9, False), (9, True), (7, True)))
    machine = SimpleNamespace(view_programs={"p": None})
    host = ViewHost(cast(Any, SimpleNamespace(controller=SimpleNamespace(machine=machine))), None)
    told: list[VersionName] = []
    process = SimpleNamespace(way={}, tell=lambda: None, go_live=told.append)
    host._processes[filling] = cast(Any, process)
    with (
        patch.object(view_host, "versions", lambda _: [live]),
        patch.object(host, "_leads", lambda _: True),
        patch.object(host, "_there", lambda: True),
        patch.object(host, "_ways", lambda: ([], "")),
    ):
        host._look()
        host._look()
    assert host._processes == {live: process}
    assert told == [live]
    # The live version's process before it ends, and one that is live already keeps its place.
    assert view_host.gone_live({filling, before}, {live}) == {filling: live}
    assert view_host.gone_live({filling, live}, {live}) == {}


def test_what_is_held_for_a_version_is_let_go_as_far_as_no_other_reads_it() -> None:
    inputs = [("sales", b"s" * 16), ("stock", b"t" * 16)]
    before, after = (VersionName("p", 5, attempt, True) for attempt in (7, 9))
    live = SimpleNamespace(attempt=9, inputs=(inputs[0], ("shops", b"h" * 16)))
    program = cast(Any, SimpleNamespace(created=5, live=live))
    assert view_host.let_go(before, inputs, program, {after}) == [inputs[1]]
    assert view_host.let_go(after, inputs, program, {after}) == (), "it was moved to another node"
    assert view_host.let_go(before, inputs, None, set()) == inputs, "the program was dropped"
    again = cast(Any, SimpleNamespace(created=6, live=live))
    assert view_host.let_go(before, inputs, again, {VersionName("p", 6, 9, True)}) == inputs
    filling = VersionName("p", 5, 9, False)
    assert view_host.let_go(filling, inputs, program, {after}) == (), "it has gone live"
    assert view_host.let_go(VersionName("p", 5, 8, False), inputs, program, {after}) == inputs, "cancelled"


@pytest.mark.parametrize("taken_over", [True, False])
def test_holds_that_another_version_takes_over_while_a_process_ends_stay(taken_over: bool) -> None:
    inputs = (("sales", b"s" * 16),)
    before = ProgramVersion(1, 7, 1, "", (), inputs, "")
    stopped = ViewProgram("p", 5, before, None, 0, 0, 0, None, "an operator stopped it", "")
    after = stopped._replace(live=before._replace(number=2, attempt=9), stopped="")
    machine = SimpleNamespace(view_programs={"p": stopped})
    released: list[Any] = []

    async def close() -> None:
        if taken_over:
            machine.view_programs = {"p": after}

    async def release(holding: Any, machine: Any, name: VersionName, held: Any) -> None:
        released.append(held)

    async def test() -> None:
        controller = SimpleNamespace(machine=machine)
        context = SimpleNamespace(controller=controller, loop=asyncio.get_running_loop(), holding=None)
        host = ViewHost(cast(Any, context), None)
        name = VersionName("p", 5, 7, True)
        host._processes[name] = cast(Any, SimpleNamespace(name=name, inputs=inputs, close=close))
        with (
            patch.object(host, "_leads", lambda _: True),
            patch.object(host, "_there", lambda: True),
            patch.object(view_host, "release_all", release),
        ):
            host._look()
            await asyncio.gather(*host._ending)

    asyncio.run(test())
    assert released == ([] if taken_over else [inputs])


def test_a_host_has_no_room_for_a_version_that_keeps_what_the_live_one_does(tmp_path: Path) -> None:
    views = [SimpleNamespace(sink="a"), SimpleNamespace(sink="b")]
    program = SimpleNamespace(live=SimpleNamespace(attempt=7, views=views), stopped="")
    machine = SimpleNamespace(view_programs={"p": program})
    config = SimpleNamespace(node=SimpleNamespace(data=str(tmp_path)))
    context = SimpleNamespace(controller=SimpleNamespace(machine=machine), config=config, node_id=3)
    host = ViewHost(cast(Any, context), None)
    name = VersionName("p", 5, 7, True)
    host._processes[name] = cast(Any, SimpleNamespace(name=name, status={"bytes": 10**9}))
    spare = view_host.SPARE_BYTES

    def room(free: int, name: str, *sinks: str) -> str | None:
        with patch.object(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free)):
            return host.no_space(name, sinks)

    assert room(spare - 1, "new", "a") == (
        f"NO_SPACE: a version of program 'new' needs {spare} bytes at least to be filled, and the disk of "
        f"node 3's data folder has {spare - 1}: make room there."
    )
    assert room(spare, "new", "a") is None
    assert f"needs {10**9 + spare} bytes" in str(room(10**9 + spare - 1, "p", "a", "b", "c"))
    assert room(10**9 + spare, "p", "a", "b", "c") is None
    assert room(spare, "p", "a", "c") is None, "it is not known what of the state is b's"
    assert room(0, "p", "b", "a") is None, "nothing is filled"
    host._processes.clear()
    assert room(spare, "p", "a", "b", "c") is None, "another node may have room"


def test_a_host_sends_a_process_another_way_only_when_its_own_serves_no_more() -> None:
    first, second = {"bootstrap.servers": "127.0.0.1:1"}, {"bootstrap.servers": "127.0.0.1:2"}
    ways: list[Way] = [first, second]
    sent: list[Way] = []
    name = VersionName("p", 5, 7, True)
    machine = SimpleNamespace(view_programs={"p": None})
    host = ViewHost(cast(Any, SimpleNamespace(controller=SimpleNamespace(machine=machine))), None)
    process = SimpleNamespace(way=second, go_by=sent.append, tell=lambda: None)
    host._processes[name] = cast(Any, process)
    with (
        patch.object(view_host, "versions", lambda _: [name]),
        patch.object(host, "_leads", lambda _: True),
        patch.object(host, "_there", lambda: True),
        patch.object(host, "_ways", lambda: (ways, "")),
    ):
        host._look()
        assert sent == [], "a better way is no reason"
        ways.clear()
        host._look()
        assert sent == [], "there is none"
        ways.append(first)
        host._look()
        assert sent == [first]


def test_a_host_without_the_packages_of_views_says_how_to_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    context: Any = SimpleNamespace(kafka=SimpleNamespace(ports={"client": 1}))
    host = ViewHost(context, StorePlace("file:///objects", {}, "owner"))
    monkeypatch.setattr(ViewHost, "_ways", lambda _: ([{"bootstrap.servers": "127.0.0.1:1"}], ""))
    assert host.problem() is None
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "polars" else object())
    assert host.problem() == "views need polars: pip install 'strandline[views]'"


def test_files_of_versions_that_do_not_run_here_go(tmp_path: Path) -> None:
    view_host.remove_files(tmp_path / "missing", [])
    for attempt in ("5/7", "5/9", "6/7"):
        (tmp_path / attempt / "a").mkdir(parents=True)
        (tmp_path / attempt / "a" / "1.run").touch()
    view_host.remove_files(tmp_path, [("5", "9")])
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.run")] == ["5/9/a/1.run"]
    assert [path.name for path in tmp_path.iterdir()] == ["5"]


def test_a_disk_that_cannot_list_files_does_not_end_the_sweep(tmp_path: Path) -> None:
    (tmp_path / "5").mkdir()
    with patch("os.scandir", side_effect=OSError(errno.EIO, "Input/output error")):
        view_host.remove_files(tmp_path, [])


def test_a_process_has_a_say_about_its_own_program_alone() -> None:
    one = ViewProcess.__new__(ViewProcess)
    one.name = VersionName("p", 5, 7, True)
    with pytest.raises(BadFrame, match="CancelViews is not for a process of this program"):
        asyncio.run(one._submit(encode(CancelViews("q", 9, "it is another's"))))


def test_an_object_is_left_only_of_what_this_node_knows_to_have_ended() -> None:
    """What began by an entry that is not applied here yet is not known, and runs."""
    known = {5: {7, 9}}
    left = {
        f"{program}/{attempt}"
        for program in (4, 5, 12)
        for attempt in (6, 7, 9, 13)
        if view_host.is_left(f"views/{program}/{attempt}/1/2.run", known, 11)
    }
    assert left == {"4/6", "4/7", "4/9", "5/6"}
    assert not view_host.is_left("views/5/of-another/1/2.run", known, 11)
