"""Answers with ranges of files: their order, slow clients, files that are deleted or cut meanwhile."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from strandline.node.kafka.wire.handler import EncodedBody, Request
from strandline.node.objectstore.object_file import FileRange, ObjectFile
from tests.kafka.wire.server_harness import init, serve, settle

MIB = 1024 * 1024
DATA = os.urandom(9 * MIB + 123)


def on_both_loops(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test on asyncio's own loop and on uvloop: each has its own way with descriptors."""

    @pytest.mark.parametrize(
        "loops", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
    )
    @wraps(test)
    def run(
        loops: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def started() -> None:
            await test(tmp_path, monkeypatch)

        with asyncio.Runner(loop_factory=loops) as runner:
            runner.run(started())

    del run.__wrapped__  # else pytest would take the arguments for those of the test
    return cast("Callable[..., None]", run)


class Given:
    """Answers each request with what the test says, by its number."""

    def __init__(self, answer: Callable[[int], EncodedBody]) -> None:
        self.answer = answer
        self.started: list[int] = []

    async def handle(self, asked: Request) -> Any:
        self.started.append(asked.header.correlation_id)
        return self.answer(asked.header.correlation_id)


def opened(folder: Path, data: bytes = DATA) -> ObjectFile:
    path = folder / "object"
    path.write_bytes(data)
    loop, executor = asyncio.get_running_loop(), ThreadPoolExecutor(1)
    return ObjectFile("l1/object", os.open(path, os.O_RDONLY), loop=loop, executor=executor)


def of_kind(file: ObjectFile, number: int) -> EncodedBody:
    """Answers of all kinds: from memory, from a file, of both, and large ones of each."""
    tail = b"%d" % number
    match number % 4:
        case 0:
            return EncodedBody([FileRange(file, number, 3 * MIB), tail])
        case 1:
            return EncodedBody([b"head", FileRange(file, 5, 7), FileRange(file, 0, len(DATA)), tail])
        case 2:
            return EncodedBody([tail])
        case _:
            return EncodedBody([DATA, tail])


def bytes_of(body: EncodedBody) -> bytes:
    return b"".join(
        DATA[part.start : part.start + part.length] if isinstance(part, FileRange) else part
        for part in body.parts
    )


@on_both_loops
async def test_answers_of_all_kinds_come_whole_and_in_order(tmp_path: Path, *_: object) -> None:
    file = opened(tmp_path)
    # With much unsent a request is answered from a file while the transport still has another's answer.
    for pause, unsent_bytes in ((0.0, 1 << 16), (0.002, 1 << 16), (0.002, 1 << 26)):
        handler = Given(lambda number: of_kind(file, number))
        async with serve(handler, unsent_bytes=unsent_bytes) as served:
            client = await served.client(receive_buffer=1 << 16 if pause else None)
            for number in range(3, 17):
                client.writer.write(init(number))
            for number in range(3, 17):
                await asyncio.sleep(pause)
                frame = await client.frame()
                assert frame[:4] == number.to_bytes(4, "big")
                assert frame[4:] == bytes_of(of_kind(file, number)), number
            assert served.problems == []


@on_both_loops
async def test_an_object_that_is_deleted_while_it_is_sent_comes_whole_and_is_closed(
    tmp_path: Path, *_: object
) -> None:
    file = opened(tmp_path)
    held, descriptor, inode = weakref.ref(file), file.fileno(), os.fstat(file.fileno()).st_ino
    body = [EncodedBody([FileRange(file, 0, len(DATA))])]
    del file
    async with serve(Given(lambda _: body.pop()), unsent_bytes=1 << 16) as served:
        client = await served.client(receive_buffer=1 << 16)
        client.writer.write(init(1))
        await settle()
        (tmp_path / "object").unlink()
        assert held() is not None
        assert (await client.frame())[4:] == DATA
        await settle()
        gc.collect()
        assert held() is None
        with suppress(OSError):  # closed; or another thread of this process has the number by now
            assert os.fstat(descriptor).st_ino != inode, "the object is still open"


@on_both_loops
async def test_an_object_that_is_cut_while_it_is_sent_is_named_and_ends_this_connection_only(
    tmp_path: Path, *_: object
) -> None:
    file = opened(tmp_path)
    async with serve(Given(lambda number: of_kind(file, number)), unsent_bytes=1 << 16) as served:
        client, other = await served.client(receive_buffer=1 << 16), await served.client()
        client.writer.write(init(1))
        await settle()
        os.truncate(tmp_path / "object", 8 * MIB)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.frame()
        assert [str(problem.reason) for problem in served.problems] == ["answer_not_sent"]
        assert "object l1/object was cut" in served.problems[0].message
        other.writer.write(init(2))
        assert await other.answer() == 2


@on_both_loops
async def test_an_object_that_is_cut_after_the_look_at_it_is_named_by_the_sending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ObjectFile, "in_memory", lambda *_: True)
    file = opened(tmp_path, DATA[: 2 * MIB])
    async with serve(Given(lambda number: of_kind(file, number))) as served:
        client = await served.client()
        client.writer.write(init(0))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.frame()
        assert [str(problem.reason) for problem in served.problems] == ["answer_not_sent"]
        assert "object l1/object was cut" in served.problems[0].message


@on_both_loops
async def test_a_client_that_does_not_take_its_answer_is_closed_and_holds_no_file(
    tmp_path: Path, *_: object
) -> None:
    file = opened(tmp_path)
    held = weakref.ref(file)
    bodies = [EncodedBody([FileRange(file, 0, len(DATA))])]
    del file
    handler = Given(lambda _: bodies.pop())
    bounds: dict[str, Any] = {"unsent_bytes": 1 << 16, "slow_reader_seconds": 0.2, "sweep_seconds": 0.05}
    async with serve(handler, **bounds) as served:
        client = await served.client(receive_buffer=1 << 16)
        client.writer.write(init(1) + init(2))
        await asyncio.sleep(0.6)
        assert handler.started == [1], "the next request waits for the client"
        assert served.reasons() == ["slow_reader"]
        gc.collect()
        assert held() is None
        client.writer.close()


@on_both_loops
async def test_a_client_that_goes_lets_go_of_the_file(tmp_path: Path, *_: object) -> None:
    file = opened(tmp_path)
    held = weakref.ref(file)
    bodies = [EncodedBody([FileRange(file, 0, len(DATA))])]
    del file
    async with serve(Given(lambda _: bodies.pop()), unsent_bytes=1 << 16) as served:
        before = len(os.listdir("/proc/self/fd"))
        client = await served.client(receive_buffer=1 << 16)
        client.writer.write(init(1))
        await settle()
        assert held() is not None
        client.writer.transport.abort()
        await settle(100)
        gc.collect()
        assert held() is None
        assert served.server.connections == 0
        assert len(os.listdir("/proc/self/fd")) < before, "neither socket, nor its double, nor the file"


@on_both_loops
async def test_what_is_not_in_memory_is_read_by_a_thread_before_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[tuple[int, int]] = []
    real = ObjectFile.load

    async def load(self: ObjectFile, start: int, length: int) -> None:
        await real(self, start, length)
        loaded.append((start, length))

    monkeypatch.setattr(ObjectFile, "load", load)
    monkeypatch.setattr(ObjectFile, "in_memory", lambda _, start, length: (start, length) in loaded)
    file = opened(tmp_path)
    async with serve(Given(lambda number: of_kind(file, number))) as served:
        client = await served.client()
        client.writer.write(init(4) + init(2))
        assert (await client.frame())[4:] == bytes_of(of_kind(file, 4))
        assert await client.answer() == 2
    assert loaded[0] == (4, 512 * 1024)


@on_both_loops
async def test_the_node_stops_after_what_it_was_sending(tmp_path: Path, *_: object) -> None:
    file = opened(tmp_path)
    async with serve(Given(lambda number: of_kind(file, number)), unsent_bytes=1 << 16) as served:
        client = await served.client(receive_buffer=1 << 16)
        client.writer.write(init(0))
        await settle()
        stopping = asyncio.ensure_future(served.server.stop(5.0))
        assert (await client.frame())[4:] == bytes_of(of_kind(file, 0))
        assert await client.ended()
        await stopping
        assert served.problems == []


@on_both_loops
async def test_requests_say_whether_their_connection_takes_files(tmp_path: Path, *_: object) -> None:
    taken: list[bool] = []

    class Noting(Given):
        async def handle(self, asked: Request) -> Any:
            taken.append(asked.takes_files)
            return await super().handle(asked)

    async with serve(Noting(lambda number: EncodedBody([b"%d" % number]))) as served:
        client = await served.client()
        client.writer.write(init(1))
        assert await client.answer() == 1
    assert taken == [True]
