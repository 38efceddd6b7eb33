"""Messages of Kafka's protocol: imported by their first use, in a thread."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import fields
from functools import wraps
from pathlib import Path
from threading import Event, current_thread, main_thread
from typing import Any

import pytest

from strandline.node.kafka.wire import message_loader, response_types
from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.node.kafka.wire.message_loader import MessageLoader
from tests.kafka.wire.server_harness import EchoHandler, api_versions, commit, init, serve, settle
from tests.node.one_node import SECONDS, write_config


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on a loop of its own."""

    @wraps(test)
    def run(**given: Any) -> None:
        asyncio.run(test(**given))

    return run


class Gate:
    """Imports that wait until they are let on, each by its name and where it ran."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[int, int]] = []
        self.threads: set[bool] = set()
        self.open = Event()
        self._load = message_loader._import
        monkeypatch.setattr(message_loader, "_import", self)

    def __call__(self, key: int, version: int) -> None:
        self.asked.append((key, version))
        self.threads.add(current_thread() is main_thread())
        assert self.open.wait(30)
        self._load(key, version)


@on_a_loop
async def test_a_request_waits_for_its_messages_and_other_connections_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serve(EchoHandler()) as served:
        known, new, too = [await served.client() for _ in range(3)]
        known.writer.write(init(1))
        assert await known.answer() == 1
        gate = Gate(monkeypatch)
        for client in (new, too):
            client.writer.write(commit(1) + init(2))
            client.writer.write(commit(3))
        await settle(20)
        known.writer.write(init(2))
        assert await known.answer() == 2, "messages that are here already"
        gate.open.set()
        for client in (new, too):
            assert [await client.answer() for _ in range(3)] == [1, 2, 3], "in the order of the requests"
        assert gate.asked == [(ApiKey.OFFSET_COMMIT, 2)], "once for all"
        assert gate.threads == {False}


@on_a_loop
async def test_a_connection_that_goes_meanwhile_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(EchoHandler()) as served:
        gate = Gate(monkeypatch)
        client = await served.client()
        client.writer.write(commit(1))
        await settle(20)
        client.writer.transport.abort()
        await settle(20)
        assert served.server.connections == 0
        gate.open.set()
        await settle(20)
        assert served.server.request_bytes == 0
        assert served.problems == []


@on_a_loop
async def test_a_stranger_has_nothing_imported_but_what_a_login_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serve(EchoHandler(), mechanisms=("PLAIN",)) as served:
        gate = Gate(monkeypatch)
        gate.open.set()
        for frame in (init(1), commit(2)):
            client = await served.client()
            client.writer.write(frame)
            assert await client.ended()
        client = await served.client()
        client.writer.write(api_versions(3))
        assert await client.answer() == 3
        assert gate.asked == [(ApiKey.API_VERSIONS, 0)]


@on_a_loop
async def test_what_clients_begin_with_is_imported_before_they_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_loader, "USUAL_SECONDS", 0.01)
    monkeypatch.setattr(message_loader, "PAUSE_SECONDS", 0.0)
    async with serve(EchoHandler()) as served:
        gate = Gate(monkeypatch)
        served.server.messages.load_usual()
        await asyncio.sleep(0.1)
        client = await served.client()
        client.writer.write(commit(1))
        await settle(20)
        assert gate.asked == [message_loader.USUAL[0]], "one after the other"
        gate.open.set()
        assert await client.answer() == 1
        assert gate.asked.index((ApiKey.OFFSET_COMMIT, 2)) <= 1, "a client waits for one at most"
        for _ in range(1000):
            if len(gate.asked) > len(message_loader.USUAL):
                break
            await asyncio.sleep(0.01)
        gate.asked.remove((ApiKey.OFFSET_COMMIT, 2))
        assert gate.asked == [*message_loader.USUAL]
        assert gate.threads == {False}


@on_a_loop
async def test_a_server_that_stops_imports_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_loader, "USUAL_SECONDS", 0.01)
    gate, problems = Gate(monkeypatch), list[dict[str, Any]]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, problem: problems.append(problem))
    loader = MessageLoader(loop)
    loader.load_usual()
    loader.close()
    await asyncio.sleep(0.1)
    assert (gate.asked, problems) == ([], [])


def test_a_node_that_serves_imports_what_clients_begin_with(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from strandline.node import process\n"
        "from strandline.node.kafka.wire import message_loader\n"
        "def told(key, version):\n"
        f"    print(key, version, os.path.exists({str(tmp_path / 'data' / 'node.json')!r}), flush=True)\n"
        "    os._exit(0)\n"
        "message_loader._import = told\n"
        "sys.exit(process.main())\n"
    )
    command = [sys.executable, "-c", program, "--config", str(write_config(tmp_path))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=SECONDS)
    key, version = message_loader.USUAL[0]
    assert done.stdout == f"{int(key)} {version} True\n"


@on_a_loop
async def test_a_message_that_cannot_be_imported_is_named_and_asked_for_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(message_loader, "_import", broken)
    loader, called = MessageLoader(asyncio.get_running_loop()), asyncio.Event()
    frame = memoryview(commit(1))[4:]
    assert loader.lacks(frame)
    loader.load(frame, called.set)
    await asyncio.wait_for(called.wait(), 30)
    assert not loader.lacks(frame)
    assert "cannot be imported: OSError(5" in caplog.text


def test_frames_that_are_not_spoken_lack_nothing() -> None:
    loop = asyncio.new_event_loop()
    loader = MessageLoader(loop)
    for frame in (b"", b"\0", b"\0\x01\0", b"\x7f\xff\0\0", b"\0\x01\0\x63"):
        assert not loader.lacks(memoryview(frame)), frame
    loop.close()


def test_the_fields_of_all_versions_are_known_without_importing_them() -> None:
    for api in APIS.values():
        known: dict[str, set[str]] = {}
        for version in range(api.first, api.last + 1):
            for name, entity in response_types._classes(api.key, version).items():
                known.setdefault(name, set()).update(field.name for field in fields(entity))
        for name, found in known.items():
            assert response_types._names(api.key, name) == found, (api.key, name)


def test_a_node_imports_no_message_before_a_client_asks() -> None:
    script = (
        "import sys, strandline.node.process\n"
        "kinds = ('request', 'response')\n"
        "print([name for name in sys.modules if name.startswith('kio.schema.') and name.endswith(kinds)])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("key", "version", "name", "lacks"),
    [
        (ApiKey.FETCH, 11, "FetchableTopicResponse", "topic_id"),
        (ApiKey.PRODUCE, 9, "PartitionProduceResponse", "current_leader"),
    ],
)
def test_a_field_that_a_version_lacks_imports_nothing_later(
    key: ApiKey, version: int, name: str, lacks: str
) -> None:
    """The loop looks it up in other versions, which took it 8 to 28 ms the first time."""
    program = (
        "import sys\n"
        "from strandline.node.kafka.wire.message_loader import _import\n"
        "from strandline.node.kafka.wire.response_types import _names\n"
        f"_import({int(key)}, {version})\n"
        "before = {*sys.modules}\n"
        f"assert {lacks!r} in _names({int(key)}, {name!r})\n"
        "print(sorted({*sys.modules} - before))\n"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"


def test_of_other_versions_only_the_last_is_imported() -> None:
    """Each takes 6 to 14 ms of processor, and memory for good."""
    program = (
        "import sys\n"
        "from strandline.node.kafka.wire.message_loader import _import\n"
        f"_import({int(ApiKey.FETCH)}, 11)\n"
        "names = [name for name in sys.modules if name.startswith('kio.schema.fetch.v')]\n"
        "print(sorted({name.split('.')[3] for name in names}))\n"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout == f"{['v11', f'v{APIS[ApiKey.FETCH].last}']}\n"
