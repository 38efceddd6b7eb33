"""The worker process: the same objects as in the node, and no trouble of its own stays with the node."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from strandline.node.level_one.builder import BuilderConfig, BuildFailed, Built, Merge, Output
from strandline.node.level_one.worker import NICENESS
from strandline.node.level_one.worker_builder import PROGRAM, WorkerBuilder
from strandline.node.objectstore.opening import StorePlace
from strandline.node.objectstore.unfinished_files import PARTIAL
from strandline.node.worker.worker_link import WorkerLimits
from strandline.node.worker.worker_process import OOM_SCORE_ADJ
from strandline.snapshot.level_one_format import batches_of, parse
from strandline.snapshot.level_zero_format import Batch, encode
from strandline.statemachine.object_names import object_id, object_name
from strandline.statemachine.partition.extent import Extent, InlineExtent, ObjectExtent
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name
from tests.level_one.stamped import sent, stamped
from tests.level_one.workers import MADE, alive, gone, run, stands_back, until
from tests.level_zero.samples import TOPIC

IDENTITY = object_id(1, 2, bytes(range(16)))
CONFIG = BuilderConfig(block_bytes=1000)
SENT = [sent(b"%d " % n * 20, 1 + n % 3) for n in range(2500)]
SECRET = "not-for-everybody-to-see"
NO_MESSAGE = "import sys; sys.stdout.buffer.write(b'\\x03\\0\\0\\0abc')"

ENDS_UNLESS_READS_ARE_PACED = """
import os
from strandline.node.level_one.worker import main

advised, advise, read = set(), os.posix_fadvise, os.preadv

def advise_noted(fd, *what):
    advised.add(fd)
    advise(fd, *what)

def read_if_advised(fd, *what):
    return read(fd, *what) if fd in advised else os._exit(7)

os.posix_fadvise, os.preadv = advise_noted, read_if_advised
main()
"""


def unique(number: int) -> bytes:
    return number.to_bytes(16, "big")


def extents(folder: Path) -> list[Extent]:
    """A level-zero object in a folder and the extents of its batches, one of them inline."""
    made = encode(7, IDENTITY, [Batch(TOPIC, 0, batch.data) for batch in SENT])
    path = folder / object_name(7, IDENTITY)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(made.parts))
    (folder / PARTIAL).mkdir(exist_ok=True)
    result: list[Extent] = []
    base = 40
    for number, (batch, position) in enumerate(zip(SENT, made.positions, strict=True)):
        about = (base, batch.records, batch.term, batch.max_timestamp, len(batch.data))
        if number == 1200:
            result.append(InlineExtent(*about, batch.data))
        else:
            result.append(ObjectExtent(*about, 7, position, IDENTITY))
        base += batch.records
    return result


def builder(folder: Path, *program: str, **limits: float) -> WorkerBuilder:
    return builder_at(StorePlace(str(folder), {"secret_access_key": SECRET}, "worker"), *program, **limits)


def builder_at(place: StorePlace, *program: str, **limits: float) -> WorkerBuilder:
    loop = asyncio.get_running_loop()
    made = WorkerBuilder(place, CONFIG, loop=loop, limits=WorkerLimits(**limits), program=program or PROGRAM)
    MADE.append(made)
    return made


def command_line(process_id: int) -> str:
    return Path(f"/proc/{process_id}/cmdline").read_text()


def oom_score_adj(process_id: int) -> int:
    return int(Path(f"/proc/{process_id}/oom_score_adj").read_text())


def batches_in(folder: Path, extent: LevelOneExtent) -> list[bytes]:
    name = level_one_name(TOPIC, 0, extent.term, extent.unique)
    data = (folder / name).read_bytes()
    found = []
    for block in parse(name, data).blocks:
        for span in batches_of(name, block, data[block.position : block.end]):
            found.append(data[span.position : span.position + span.length])
    return found


@contextmanager
def silent_store() -> Iterator[StorePlace]:
    """A bucket at a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        options = {"endpoint": endpoint, "region": "x", "access_key_id": "x", "secret_access_key": SECRET}
        yield StorePlace("s3://bucket", options, "worker")


STUCK = Output(TOPIC, 0, 3, unique(99), [ObjectExtent(0, 1, 3, 0, 100, 7, 16, IDENTITY)])
"""Never made where the store is silent."""


def job_under_way(worker: WorkerBuilder, outputs: list[Output]) -> asyncio.Task[list[Built]]:
    """A job for a worker that is stopped: only force ends it."""
    assert worker.process_id is not None
    os.kill(worker.process_id, signal.SIGSTOP)
    return asyncio.create_task(worker.build(outputs))


def test_what_it_reads_does_not_keep_the_logs_from_the_disk(tmp_path: Path) -> None:
    async def scenario() -> None:
        worker = builder(tmp_path, sys.executable, "-P", "-c", ENDS_UNLESS_READS_ARE_PACED)
        [built] = await worker.build([Output(TOPIC, 0, 3, unique(1), extents(tmp_path))])
        assert isinstance(built, LevelOneExtent)
        await worker.close()

    run(scenario())


def test_objects_are_built_and_merged(tmp_path: Path) -> None:
    async def scenario() -> None:
        lifted = extents(tmp_path)
        worker = builder(tmp_path)
        built = await worker.build(
            [Output(TOPIC, 0, 3, unique(1), lifted[:1000]), Output(TOPIC, 0, 3, unique(2), lifted[1000:])]
        )
        assert worker.process_id is not None
        assert stands_back(worker.process_id, NICENESS)
        assert oom_score_adj(worker.process_id) == OOM_SCORE_ADJ
        assert "worker" in command_line(worker.process_id)
        assert SECRET not in command_line(worker.process_id)
        assert all(isinstance(one, LevelOneExtent) for one in built)
        sources = [one for one in built if isinstance(one, LevelOneExtent)]
        expected = [stamped(batch, at.base_offset) for batch, at in zip(SENT, lifted, strict=True)]
        assert batches_in(tmp_path, sources[0]) + batches_in(tmp_path, sources[1]) == expected
        merged = await worker.merge(Merge(TOPIC, 0, 4, unique(3), sources))
        assert isinstance(merged, LevelOneExtent)
        assert batches_in(tmp_path, merged) == expected
        measures = worker.measures
        assert (measures.objects, measures.merges, measures.batches, measures.starts) == (3, 1, 2500, 1)
        assert measures.bytes_written == merged.size + sum(one.size for one in sources)
        assert 0 < measures.cpu_seconds < 20
        process = worker.process_id
        await worker.close()
        assert not alive(process)
        assert await worker.build([Output(TOPIC, 0, 3, unique(9), lifted)]) == [
            BuildFailed("the node is stopping", retriable=True)
        ]

    run(scenario())


def test_what_fails_in_the_worker_comes_back_as_it_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        lifted = extents(tmp_path)
        worker = builder(tmp_path)
        with pytest.raises(ValueError, match="comes after"):
            await worker.build([Output(TOPIC, 0, 3, unique(1), [*lifted[:4], *lifted[5:]])])
        with pytest.raises(ValueError, match="without batches"):
            await worker.merge(Merge(TOPIC, 0, 3, unique(1), []))
        path = tmp_path / object_name(7, IDENTITY)
        path.write_bytes(path.read_bytes()[:100])
        [failed] = await worker.build([Output(TOPIC, 0, 3, unique(1), lifted)])
        assert isinstance(failed, BuildFailed)
        assert "the object is cut" in failed.reason
        assert not failed.retriable
        assert worker.measures.failed == 1
        path.unlink()
        missing = LevelOneExtent(0, 1, 0, 500, 200, 3, unique(5))
        failed = await worker.merge(Merge(TOPIC, 0, 3, unique(1), [missing]))
        assert isinstance(failed, BuildFailed)
        assert "there is no such object" in failed.reason
        assert worker.measures.starts == 1
        await worker.close()

    run(scenario())


def test_a_worker_that_dies_is_a_failed_job_and_the_next_one_has_a_new_worker(tmp_path: Path) -> None:
    async def scenario() -> None:
        lifted = extents(tmp_path)
        worker = builder(tmp_path)

        def output(number: int) -> Output:
            return Output(TOPIC, 0, 3, unique(number), lifted)

        await worker.build([output(1)])
        under_way = job_under_way(worker, [output(2), output(3)])
        await asyncio.sleep(0.3)
        first = worker.process_id
        assert first is not None
        os.kill(first, signal.SIGKILL)
        killed = "it was ended by SIGKILL, as the kernel does when memory runs out"
        died = BuildFailed(f"the level-one worker failed: {killed}", retriable=True)
        assert await under_way == [died, died]
        assert worker.measures.failed == 2
        [built] = await worker.build([output(4)])
        assert isinstance(built, LevelOneExtent)
        assert worker.measures.starts == 2
        # One that dies while it has nothing to do is not even noticed, or fails one job.
        assert worker.process_id is not None
        os.kill(worker.process_id, signal.SIGKILL)
        await gone(worker.process_id)
        results = [await worker.build([output(number)]) for number in (5, 6)]
        assert isinstance(results[1][0], LevelOneExtent)
        assert worker.measures.starts == 3
        await worker.close()

    run(scenario())


def test_a_worker_whose_input_is_closed_is_a_failed_job(tmp_path: Path) -> None:
    """So it is between the moment it dies and the one in which that is noticed; uvloop refuses the write."""

    async def scenario() -> None:
        lifted = extents(tmp_path)
        worker = builder(tmp_path)
        await worker.build([Output(TOPIC, 0, 3, unique(1), lifted)])
        process = worker._link._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()
        [failed] = await worker.build([Output(TOPIC, 0, 3, unique(2), lifted)])
        assert isinstance(failed, BuildFailed)
        assert failed.retriable
        [built] = await worker.build([Output(TOPIC, 0, 3, unique(3), lifted)])
        assert isinstance(built, LevelOneExtent)
        await worker.close()

    run(scenario())


def test_a_cancelled_job_takes_the_worker_with_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        lifted = extents(tmp_path)
        worker = builder(tmp_path)
        await worker.build([Output(TOPIC, 0, 3, unique(1), lifted)])
        first = worker.process_id
        under_way = job_under_way(worker, [Output(TOPIC, 0, 3, unique(2), lifted)])
        await asyncio.sleep(0.3)
        under_way.cancel()
        with pytest.raises(asyncio.CancelledError):
            await under_way
        assert not alive(first)
        [built] = await worker.build([Output(TOPIC, 0, 3, unique(3), lifted)])
        assert isinstance(built, LevelOneExtent)
        await worker.close()

    run(scenario())


def test_closing_ends_a_job_under_way() -> None:
    async def scenario(place: StorePlace) -> None:
        worker = builder_at(place)
        under_way = asyncio.create_task(worker.build([STUCK]))
        await until(lambda: worker.measures.starts)
        process = worker.process_id
        await asyncio.sleep(0.5)
        await worker.close()
        assert await under_way == [BuildFailed("the node is stopping", retriable=True)]
        assert not alive(process)

    with silent_store() as place:
        run(scenario(place))


def test_a_folder_that_is_missing_is_not_made_and_serves_once_it_is_back(tmp_path: Path) -> None:
    """As where it is not mounted: a folder in its place would stand in its way."""
    folder, away = tmp_path / "objects", tmp_path / "away"

    async def scenario() -> None:
        lifted = extents(folder)
        folder.rename(away)
        worker = builder(folder)
        [result] = await worker.build([Output(TOPIC, 0, 3, unique(1), lifted)])
        assert isinstance(result, BuildFailed)
        assert "the store's folder is missing" in result.reason
        assert result.retriable
        assert not folder.exists()
        away.rename(folder)
        [built] = await worker.build([Output(TOPIC, 0, 3, unique(2), lifted)])
        assert isinstance(built, LevelOneExtent)
        await worker.close()

    run(scenario())


def test_a_job_that_takes_for_ever_is_ended() -> None:
    async def scenario(place: StorePlace) -> None:
        worker = builder_at(place, job_seconds=1.0)
        results = await worker.build([STUCK])
        assert results == [BuildFailed("the level-one worker failed: it took too long", retriable=True)]
        assert worker.process_id is None
        await worker.close()

    with silent_store() as place:
        run(scenario(place))


def test_a_worker_without_jobs_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        lifted = extents(tmp_path)
        worker = builder(tmp_path, idle_seconds=0.5)
        for number in (1, 2):
            await worker.build([Output(TOPIC, 0, 3, unique(number), lifted)])
            process = worker.process_id
            assert process is not None
            assert alive(process)
            await gone(process)
            await until(lambda: worker.process_id is None)
        assert worker.measures.starts == 2
        await worker.close()

    run(scenario())


def test_a_store_that_cannot_be_opened_is_a_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "file").write_bytes(b"")
        worker = builder(tmp_path / "file")
        [failed] = await worker.build([Output(TOPIC, 0, 3, unique(1), extents(tmp_path))])
        assert isinstance(failed, BuildFailed)
        assert failed.retriable
        assert "the level-one worker failed: open " in failed.reason
        await worker.close()

    run(scenario())


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("print('what is this?')", "is above"),
        (NO_MESSAGE, "is not a message|are not a message|its kind"),
        ("import sys; sys.stdout.buffer.write(b'\\x02\\0\\0\\0\\x91\\xa0')", "an answer of kind ''"),
        ("raise SystemExit(7)", "it ended with code 7"),
        ("import time; time.sleep(100)", "it took too long"),
    ],
)
def test_a_program_that_is_no_worker_does_no_harm(tmp_path: Path, code: str, reason: str) -> None:
    async def scenario() -> None:
        worker = builder(tmp_path, sys.executable, "-S", "-c", code, start_seconds=1.5)
        [failed] = await worker.build([Output(TOPIC, 0, 3, unique(1), extents(tmp_path))])
        assert isinstance(failed, BuildFailed)
        assert failed.retriable
        assert any(part in failed.reason for part in reason.split("|")), failed.reason
        assert worker.process_id is None
        await worker.close()

    run(scenario())


def test_what_a_program_said_is_read_though_it_ended_before_it_was_written_to(tmp_path: Path) -> None:
    start = asyncio.create_subprocess_exec

    async def ended(*command: str, **pipes: Any) -> asyncio.subprocess.Process:
        process = await start(*command, **pipes)
        await process.wait()
        return process

    async def scenario() -> None:
        for code, reason in (
            (NO_MESSAGE, "is not a message|are not a message|its kind"),
            ("", "it ended with code 0"),
        ):
            worker = builder(tmp_path, sys.executable, "-S", "-c", code)
            with patch.object(asyncio, "create_subprocess_exec", ended):
                [failed] = await worker.build([Output(TOPIC, 0, 3, unique(1), extents(tmp_path))])
            assert isinstance(failed, BuildFailed)
            assert any(part in failed.reason for part in reason.split("|")), failed.reason
            await worker.close()

    run(scenario())


def test_what_the_worker_says_is_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    code = "import sys; sys.stderr.write('x' * 200_000 + chr(10) + 'help!' + chr(10))"

    async def scenario() -> None:
        worker = builder(tmp_path, sys.executable, "-S", "-c", code)
        await worker.build([Output(TOPIC, 0, 3, unique(1), extents(tmp_path))])
        await worker.close()

    with caplog.at_level(logging.WARNING):
        run(scenario())
    said = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("level-one worker ") and line.endswith(": help!") for line in said), said
    assert sum(map(len, said)) < 100_000


def test_a_worker_that_nobody_talks_to_says_so() -> None:
    done = subprocess.run(PROGRAM, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "this is started by a node, which talks to it by its standard input\n"


@pytest.mark.parametrize("busy", [False, True])
def test_a_worker_ends_with_its_node_however_that_ends(busy: bool) -> None:
    """kill -9 of whoever holds the other end of the pipe, without and with a job under way."""
    program = f"""
import asyncio, sys
from tests.level_one.test_worker import CONFIG, STUCK, StorePlace, WorkerBuilder, until
async def main():
    options = {{"endpoint": sys.argv[1], "region": "x", "access_key_id": "x", "secret_access_key": "x"}}
    place = StorePlace("s3://bucket", options, "worker")
    worker = WorkerBuilder(place, CONFIG, loop=asyncio.get_running_loop())
    {"task = asyncio.create_task(worker.build([STUCK]))" if busy else "await worker.build([])"}
    await until(lambda: worker.measures.starts)
    await asyncio.sleep(0.5)
    print(worker.process_id, flush=True)
    await asyncio.sleep(100)
asyncio.run(main())
"""
    with (
        silent_store() as place,
        subprocess.Popen(
            [sys.executable, "-c", program, place.options["endpoint"]], stdout=subprocess.PIPE, text=True
        ) as node,
    ):
        assert node.stdout is not None
        worker = int(node.stdout.readline())
        assert alive(worker)
        node.kill()
        node.wait()
        end = time.monotonic() + 20
        while alive(worker):
            assert time.monotonic() < end, "the worker outlived its node"
            time.sleep(0.02)


def resident_bytes(process_id: int) -> int:
    return int(Path(f"/proc/{process_id}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_memory_of_a_job_is_given_back_when_no_other_follows(tmp_path: Path) -> None:
    batches = [sent(os.urandom(1 << 20), 1) for _ in range(48)]
    made = encode(7, IDENTITY, [Batch(TOPIC, 0, batch.data) for batch in batches])
    path = tmp_path / object_name(7, IDENTITY)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(made.parts))
    (tmp_path / PARTIAL).mkdir(exist_ok=True)
    places = [
        ObjectExtent(number, 1, batch.term, batch.max_timestamp, len(batch.data), 7, position, IDENTITY)
        for number, (batch, position) in enumerate(zip(batches, made.positions, strict=True))
    ]

    async def job() -> None:
        worker = builder(tmp_path)
        [built] = await worker.build([Output(TOPIC, 0, 5, unique(1), places)])
        assert isinstance(built, LevelOneExtent)
        process_id = worker.process_id
        assert process_id is not None
        after = resident_bytes(process_id)
        assert after > 48 << 20
        await until(lambda: resident_bytes(process_id) < after - (40 << 20))

    run(job())
