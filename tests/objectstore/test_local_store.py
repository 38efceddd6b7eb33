"""Objects as files: the contract on a real folder and on a simulated disk, and what goes wrong with disks."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.node.objectstore.joined_parts import WRITE_BYTES, joined
from strandline.node.objectstore.local_store import MAX_JOBS, LocalStore
from strandline.node.objectstore.store import NotDone, ObjectNotFound, OutcomeUnknown
from strandline.node.raft.disk import RealDisk
from tests.level_zero.samples import run, started
from tests.objectstore.store_contract import check_contract
from tests.simulation.node import SimNode
from tests.simulation.world import World

T = TypeVar("T")
SMALL_LIMIT = 4 * 1024 * 1024


def opened(node: SimNode, owner: str = "node-1", **options: Any) -> LocalStore:
    return LocalStore.open(node.disk, "/s", owner=owner, loop=node.loop, executor=node.executor, **options)


class Simulated:
    """A store on a simulated disk."""

    def __init__(self) -> None:
        self.world = World(1)
        self.node = started(self.world)
        self.disk = self.node.disk
        self.store = opened(self.node)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return run(self.world, self.node, coroutine)

    def files(self) -> list[str]:
        return [path for path in self.disk.snapshot() if not path.endswith(".lock")]


@pytest.fixture
def sim() -> Iterator[Simulated]:
    simulated = Simulated()
    with simulated.world:
        yield simulated
        simulated.world.check()


def test_contract_on_a_real_folder(tmp_path: Path) -> None:
    async def check() -> None:
        with ThreadPoolExecutor(4) as executor:
            store = LocalStore.open(
                RealDisk(),
                str(tmp_path / "deep" / "store"),
                owner="node-1",
                loop=asyncio.get_running_loop(),
                executor=executor,
                max_object_bytes=SMALL_LIMIT,
            )
            await check_contract(store)
            await asyncio.gather(*(store.put(f"l0/{n % 3}/{n}", [b"%d" % n] * 3) for n in range(60)))
            assert len(await store.list("l0/", "", 100)) == 60
            await store.close()

    asyncio.run(check())
    left = [path.name for path in (tmp_path / "deep/store/.partial").rglob("*") if path.is_file()]
    assert left == ["node-1.lock"]


def test_contract_on_a_simulated_disk(sim: Simulated) -> None:
    store = opened(sim.node, owner="node-2", max_object_bytes=SMALL_LIMIT)
    sim.run(check_contract(store))


segments = st.text(alphabet="ab0.-_=", min_size=1, max_size=3).filter(lambda text: text[0] not in ".-=")
paths = st.lists(segments, min_size=1, max_size=3).map("/".join)


def prefix_free(keys: set[str]) -> list[str]:
    """Without those that a file system could not hold beside a longer one."""
    return [key for key in sorted(keys) if not any(other.startswith(key + "/") for other in keys)]


@given(st.sets(paths, max_size=12).map(prefix_free), paths | st.just(""), st.integers(1, 5))
def test_listing_is_in_key_order_from_any_start(keys: list[str], after: str, limit: int) -> None:
    with World(1) as world:
        node = started(world)
        node.disk.job_seconds = (0.0, 0.0)
        store = opened(node)
        for key in keys:
            run(world, node, store.put(key, [b"."]))
        assert run(world, node, store.list("", after, limit)) == [key for key in keys if key > after][:limit]
        folder = keys[0].split("/")[0] + "/" if keys else "a/"
        wanted = [key for key in keys if key > after and key.startswith(folder)]
        assert run(world, node, store.list(folder, after, 100)) == wanted


@pytest.mark.parametrize("epochs", [10, 200])
def test_the_first_names_cost_the_same_however_many_follow(sim: Simulated, epochs: int) -> None:
    for epoch in range(epochs):
        for n in range(5):
            sim.run(sim.store.put(f"l0/0001/{epoch:04}/{n}", [b"."]))
    before = sim.disk.counts["listdir"]
    assert sim.run(sim.store.list("l0/0001/", "", 7)) == [f"l0/0001/{n // 5:04}/{n % 5}" for n in range(7)]
    # The shard's folder, two epochs' folders, and each name is tried as a folder.
    assert sim.disk.counts["listdir"] - before == 1 + 2 + 7
    before = sim.disk.counts["listdir"]
    assert sim.run(sim.store.list("l0/0001/", "l0/0001/0004/3", 3))[0] == "l0/0001/0004/4"
    assert sim.disk.counts["listdir"] - before <= 1 + 2 + 4


def test_one_put_is_write_sync_rename_sync(sim: Simulated) -> None:
    sim.run(sim.store.put("l0/0001/a", [b"first"]))
    before = dict(sim.disk.counts)
    sim.run(sim.store.put("l0/0001/b", [b"x"] * 500))
    done = {name: count - before.get(name, 0) for name, count in sim.disk.counts.items()}
    assert {name: count for name, count in done.items() if count} == {
        "create": 1,
        "pwrite": 1,
        "datasync": 1,
        "rename": 1,
        "sync_dir": 1,
    }


@given(st.lists(st.integers(0, 3 * 65_536), max_size=40))
def test_small_parts_are_written_together_and_large_ones_as_they_are(sizes: list[int]) -> None:
    parts = [bytes([n % 256]) * size for n, size in enumerate(sizes)]
    written = list(joined(parts))
    assert b"".join(written) == b"".join(parts)
    large = [id(part) for part in parts if len(part) >= 65_536]
    assert [id(chunk) for chunk in written if id(chunk) in large] == large
    assert len(written) <= 2 * len(large) + 1 + sum(sizes) // WRITE_BYTES


def test_a_full_disk_is_definite_and_leaves_nothing_behind(sim: Simulated) -> None:
    sim.disk.fill(10)
    with pytest.raises(NotDone, match="No space left on device") as raised:
        sim.run(sim.store.put("l0/a", [b"x" * 100]))
    assert raised.value.retriable
    assert sim.files() == []
    sim.disk.empty()
    sim.run(sim.store.put("l0/a", [b"x" * 100]))
    assert sim.files() == ["/s/l0/a"]


@pytest.mark.parametrize("operation", ["create", "pwrite", "datasync", "rename"])
def test_an_error_before_the_rename_is_definite(sim: Simulated, operation: str) -> None:
    sim.disk.fail_next(operation, errno.EIO)
    with pytest.raises(NotDone, match="Input/output error") as raised:
        sim.run(sim.store.put("l0/a", [b"x"]))
    assert raised.value.retriable
    assert sim.files() == []


def test_an_error_after_the_rename_leaves_the_outcome_unknown(sim: Simulated) -> None:
    sim.run(sim.store.put("l0/a", [b"x"]))
    sim.disk.fail_next("sync_dir", errno.EIO)
    with pytest.raises(OutcomeUnknown, match="its folder could not be synced: Input/output error"):
        sim.run(sim.store.put("l0/b", [b"x"]))


def test_an_error_while_deleting_leaves_the_outcome_unknown(sim: Simulated) -> None:
    sim.run(sim.store.put("l0/a", [b"x"]))
    sim.disk.fail_next("unlink", errno.EIO)
    with pytest.raises(OutcomeUnknown):
        sim.run(sim.store.delete_many(["l0/a"]))


def test_folders_go_with_their_last_object_and_come_back(sim: Simulated) -> None:
    sim.run(sim.store.put("l0/0001/1/a", [b"x"]))
    sim.run(sim.store.put("l0/0001/2/b", [b"x"]))
    sim.run(sim.store.delete_many(["l0/0001/1/a"]))
    assert not sim.disk.exists("/s/l0/0001/1")
    assert sim.disk.exists("/s/l0/0001/2")
    sim.run(sim.store.put("l0/0001/1/c", [b"x"]))
    assert sim.run(sim.store.list("", "", 10)) == ["l0/0001/1/c", "l0/0001/2/b"]


def test_a_put_survives_that_another_node_removes_the_folder(sim: Simulated) -> None:
    other = opened(sim.node, owner="node-2")
    sim.run(sim.store.put("l0/1/a", [b"x"]))
    sim.run(other.delete_many(["l0/1/a"]))
    assert not sim.disk.exists("/s/l0/1")
    sim.run(sim.store.put("l0/1/b", [b"x"]))
    assert sim.run(other.list("", "", 10)) == ["l0/1/b"]


def test_a_store_that_is_moved_away_during_a_put_is_not_begun_anew(tmp_path: Path) -> None:
    class Moving(RealDisk):
        def rename(self, source: str, target: str) -> None:
            (tmp_path / "store").rename(tmp_path / "away")
            super().rename(source, target)

    async def check() -> None:
        with ThreadPoolExecutor(1) as executor:
            store = LocalStore.open(
                Moving(),
                str(tmp_path / "store"),
                owner="node-1",
                loop=asyncio.get_running_loop(),
                executor=executor,
            )
            with pytest.raises(NotDone, match="the store's folder is missing"):
                await store.put("l0/1/x", [b"x"])
            await store.close()

    asyncio.run(check())
    assert not (tmp_path / "store").exists()


def test_an_owner_sweeps_its_own_leftovers_and_nobody_elses(sim: Simulated) -> None:
    for owner in ("node-1", "node-2"):
        sim.disk.mkdir(f"/s/.partial/{owner}")
        for folder in (f"/s/.partial/{owner}.apart/03", f"/s/.partial/{owner}/05"):
            sim.disk.mkdir(folder)
            sim.disk.open(f"{folder}/800", create=True).close()
        sim.disk.open(f"/s/.partial/{owner}/17", create=True).close()  # as earlier releases had them
    sim.run(sim.store.close())
    opened(sim.node)
    left = ["/s/.partial/node-2.apart/03/800", "/s/.partial/node-2/05/800", "/s/.partial/node-2/17"]
    assert sim.files() == left


def test_two_processes_of_one_name_are_refused(sim: Simulated) -> None:
    with pytest.raises(NotDone, match=r"another process uses this folder as node-1$") as caught:
        opened(sim.node)
    assert caught.value.cure.startswith("stop that process, or")
    sim.run(sim.store.close())
    opened(sim.node)


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    loop = asyncio.new_event_loop()
    with ThreadPoolExecutor(1) as executor, pytest.raises(NotDone, match=r"Not a directory \(.*/file"):
        LocalStore.open(RealDisk(), str(tmp_path / "file"), owner="n", loop=loop, executor=executor)
    loop.close()


def test_a_read_tells_a_store_that_is_gone_from_an_object_that_is_gone(tmp_path: Path) -> None:
    """An object that is missing is corruption to a reader, and final to its client; a store comes back."""

    async def check() -> None:
        with ThreadPoolExecutor(1) as executor:
            store = LocalStore.open(
                RealDisk(), str(tmp_path / "s"), owner="n", loop=asyncio.get_running_loop(), executor=executor
            )
            await store.put("l0/a", [b"abc"])
            for gone in (False, True):
                if gone:
                    (tmp_path / "s").rename(tmp_path / "away")
                for read in (store.get("l0/b"), store.get_range("l0/b", 0, 1), store.size("l0/b")):
                    with pytest.raises(NotDone) as caught:
                        await read
                    assert isinstance(caught.value, ObjectNotFound) is not gone
                    assert caught.value.retriable is gone
            (tmp_path / "away").rename(tmp_path / "s")
            assert await store.get("l0/a") == b"abc"
            await store.close()

    asyncio.run(check())


def test_a_stalled_disk_holds_a_bounded_number_of_operations(sim: Simulated) -> None:
    sim.disk.stall()
    loop = sim.node.loop
    tasks = [loop.create_task(sim.store.put(f"a/{n}", [b"x"])) for n in range(MAX_JOBS)]
    sim.world.run(1.0)
    with pytest.raises(NotDone, match=f"{MAX_JOBS} operations wait for the disk") as raised:
        sim.run(sim.store.put("a/more", [b"x"]))
    assert raised.value.retriable
    # Giving up on an operation does not take it off the disk.
    tasks[0].cancel()
    with pytest.raises(NotDone):
        sim.run(sim.store.get("a/0"))
    sim.disk.unstall()
    sim.world.run(100.0)
    sim.run(sim.store.put("a/more", [b"x"]))
    assert len(sim.run(sim.store.list("", "", 1000))) == MAX_JOBS + 1


def test_what_is_gone_during_a_listing_is_left_out(sim: Simulated) -> None:
    sim.run(sim.store.put("l0/a", [b"x"]))
    with pytest.raises(ObjectNotFound):
        sim.run(sim.store.get("l0"))


def on_disk(folder: Path, parts: list[bytes]) -> list[str]:
    """Put an object on the real disk; the system calls in their order."""
    sizes = [(part[0], len(part)) for part in parts]
    script = (
        "import asyncio\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from strandline.node.objectstore.local_store import LocalStore\n"
        "from strandline.node.raft.disk import RealDisk\n"
        "async def main():\n"
        "    with ThreadPoolExecutor(1) as executor:\n"
        f"        store = LocalStore.open(RealDisk(), {str(folder)!r}, owner='a', executor=executor,\n"
        "                                loop=asyncio.get_running_loop())\n"
        f"        await store.put('l0/a', [bytes([n]) * size for n, size in {sizes}])\n"
        "asyncio.run(main())\n"
    )
    calls = "pwrite64,pwritev2,fdatasync,fadvise64,rename,renameat,renameat2,fsync"
    trace = subprocess.run(
        ["strace", "-f", "-s", "0", "-e", f"trace={calls}", sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    lines = [line.split("] ")[-1] for line in trace.stderr.splitlines() if "resumed" not in line]
    first = next(n for n, line in enumerate(lines) if line.startswith(("pwrite", "pwritev2")))
    return [line for line in lines[first:] if "(" in line]


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_put_is_one_durable_write_and_a_large_one_leaves_the_page_cache(tmp_path: Path) -> None:
    small, large = [b"a" * 100, b"b" * 200], [b"a" * 70_000, b"b" * 100, b"c" * 80_000]
    for folder, parts in ((tmp_path / "small", small), (tmp_path / "large", large)):
        calls = on_disk(folder, parts)
        assert (folder / "l0/a").read_bytes() == b"".join(parts)
        names = [call.split("(")[0] for call in calls]
        forgotten = ["fadvise64"] if parts is large else []
        if sys.platform == "linux":
            assert "RWF_DSYNC" in calls[0]
            # The new folder's parents are synced before, the folder itself after the name is in it.
            assert [name for name in names if name != "fsync"] == ["pwritev2", *forgotten, "rename"]
        assert names[-2:] == ["rename", "fsync"]


@pytest.mark.parametrize("taken", [0, 5, 100, 2_999])
def test_a_write_the_system_cuts_short_is_made_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    synced = []

    def cut(fd: int, parts: list[bytes], offset: int, flags: int = 0) -> int:
        return os.pwrite(fd, b"".join(parts)[:taken], offset)

    def sync(fd: int) -> None:
        synced.append(os.fstat(fd).st_size)

    monkeypatch.setattr(os, "pwritev", cut)
    monkeypatch.setattr(os, "fdatasync", sync)
    file = RealDisk().open(str(tmp_path / "file"), create=True)
    parts = [b"a" * 1_000, b"b" * 2_000]
    file.write_durably(parts)
    assert file.pread(10_000, 0) == b"".join(parts)
    assert synced == [3_000]
    file.close()


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOSYS])
def test_where_there_is_no_such_call_a_write_and_a_sync_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refused(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwritev", refused)
    file = RealDisk().open(str(tmp_path / "file"), create=True)
    file.write_durably([b"a", b"b"])
    assert file.pread(10, 0) == b"ab"
    code = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        file.write_durably([b"a", b"b"])
    file.close()


def test_more_parts_than_one_call_takes(tmp_path: Path) -> None:
    parts = [n.to_bytes(2, "big") for n in range(3_000)]
    file = RealDisk().open(str(tmp_path / "file"), create=True)
    file.write_durably(parts)
    assert file.pread(10_000, 0) == b"".join(parts)
    file.forget_cached()
    assert file.pread(10_000, 0) == b"".join(parts)
    file.close()
