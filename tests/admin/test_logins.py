"""HTTP through TLS, and its logins: who is let in, who may change what, and what a stranger learns."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from strandline.node.admin import logins as logins_module
from strandline.node.admin.health import reaches_controller
from strandline.node.admin.http import MAX_CONNECTIONS
from strandline.node.admin.http import MAX_OF_ADDRESS as MAX_CONNECTIONS_OF_ADDRESS
from strandline.node.admin.server import AdminListenError, AdminServer
from strandline.node.config.authorization import AuthorizationSection
from strandline.node.config.first_user import FirstUser
from strandline.node.kafka.handlers import passwords, scram
from strandline.node.kafka.handlers.authorizer import Authorizer
from strandline.node.kafka.handlers.login_turns import MAX_OF_ADDRESS
from strandline.node.kafka.handlers.sasl import FAILED_SECONDS
from strandline.node.kafka.handlers.scram import credential_of
from strandline.node.tls.keeper import TlsSettings
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.controller.controller_commands import AlterScramCredentials
from strandline.statemachine.controller.scram_credentials import ScramCredential, ScramMechanism
from tests.admin.small_node import SmallNode, parsed
from tests.kafka.handlers.scram_client import salted_password
from tests.kafka.wire.certificates import Authority
from tests.raft.mesh.mesh_nodes import on_loop

SECRET = b"the secret of the cluster"
PAUSE = b"POST /api/gc/pause HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"


class Port:
    """A node's HTTP port with TLS."""

    def __init__(self, node: SmallNode, server: AdminServer, authority: Authority) -> None:
        self.node, self.server = node, server
        self.context = ssl.create_default_context(cafile=authority.path)

    async def ask(self, target: str, login: str | None = None, head: bytes = b"", body: bytes = b"") -> Any:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port, ssl=self.context)
        head = head or f"GET {target} HTTP/1.1\r\n".encode()
        if login is not None:
            head += b"Authorization: Basic " + base64.b64encode(login.encode()) + b"\r\n"
        writer.write(head + b"Host: localhost\r\nConnection: close\r\n\r\n" + body)
        answer = parsed(await asyncio.wait_for(reader.read(), 10))
        writer.close()
        return answer

    async def user(self, name: str, password: str) -> None:
        salted = salted_password(password, b"0123456789", 4096, "sha256")
        made = credential_of(ScramMechanism.SHA_256, salted, b"0123456789", 4096)
        await self.node.command(AlterScramCredentials(name, [], [(ScramMechanism.SHA_256, *made)]))


@asynccontextmanager
async def port(folder: Path, secret: bytes | None = SECRET) -> AsyncIterator[Port]:
    authority = Authority(folder)
    node = SmallNode(folder)
    server = AdminServer(node, "127.0.0.1", 0, tls=TlsSettings(*authority.issue("node")), secret=secret)
    try:
        await node.start({"orders": 1})
        await server.start()
        yield Port(node, server, authority)
    finally:
        await server.stop()
        await node.stop()


@on_loop
async def test_http_through_tls(tmp_path: Path) -> None:
    async with port(tmp_path, None) as http:
        assert (await http.ask("/api/topics")).json()["topics"][0]["name"] == "orders"
        assert "strandline_http_certificate_end_seconds" in (await http.ask("/metrics")).body.decode()
        reader, writer = await asyncio.open_connection("127.0.0.1", http.server.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" not in await reader.read(100)
        writer.close()


@on_loop
async def test_a_user_is_let_in_and_all_others_get_the_same_answer(tmp_path: Path) -> None:
    async with port(tmp_path) as http:
        await http.user("alice", "wonder:land")
        assert (await http.ask("/api/topics", "alice:wonder:land")).status == 200
        for path in ("/api/topics", "/metrics", "/api/openapi.json", "/nothing"):
            stranger = await http.ask(path)
            assert stranger.status == 401
            assert stranger.headers["www-authenticate"].startswith("basic realm=")
            assert "orders" not in stranger.body.decode()
        logins = ("alice:x", "bob:wonder:land", "alice:", ":x")
        wrong = [await http.ask("/api/topics", login) for login in logins]
        assert {(one.status, one.body) for one in wrong} == {(401, wrong[0].body)}
        for header in (b"Bearer abc", b"Basic !", b"Basic " + base64.b64encode(b"\xff:x"), b"Basic"):
            head = b"GET /api/topics HTTP/1.1\r\nAuthorization: " + header + b"\r\n"
            assert (await http.ask("", head=head)).status == 401


@on_loop
async def test_what_is_done_is_recorded_with_the_user_and_what_it_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "strandline.actions")

    async def post(path: str, login: str, told: Any) -> int:
        body = json.dumps(told).encode()
        head = f"POST {path} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        answer = await http.ask("", login, head.encode(), body)
        return int(answer.status)

    async with port(tmp_path) as http:
        await http.user("alice", "wonderland")
        await http.user("root", "wonderland")
        section = AuthorizationSection(True, ("User:root",))
        http.node.authorizer = Authorizer(lambda: http.node.machine.acls, section)
        assert await post("/api/gc/pause", "alice:wonderland", {}) == 403
        assert await post("/api/nodes/drain", "root:wonderland", {"node": 1, "draining": True}) == 409
        assert await post("/api/gc/pause", "root:wonderland", {}) == 200
        assert await post("/api/views", "root:wonderland", {"odd": [1], "program": "x" * 5000}) == 400
        assert (await http.ask("/api/topics", "root:wonderland")).status == 200
        assert (await http.ask("/api/topics", "root:wrong")).status == 401
    assert [record.getMessage() for record in caplog.records if record.name == "strandline.actions"] == [
        "User:alice from 127.0.0.1: logged in by a password",
        "User:alice from 127.0.0.1: may not ALTER CLUSTER:kafka-cluster, asked by HTTP POST",
        "User:root from 127.0.0.1: logged in by a password",
        "User:root from 127.0.0.1: POST /api/nodes/drain of node=1, draining=True: status 409",
        "User:root from 127.0.0.1: POST /api/gc/pause of nothing: done",
        "User:root from 127.0.0.1: POST /api/views of nothing: status 400",
    ]
    (change,) = (record for record in caplog.records if getattr(record, "action", "") == "change")
    assert vars(change)["listener"] == "HTTP"
    assert "wonderland" not in caplog.text


@on_loop
async def test_what_is_done_without_logins_is_recorded_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "strandline.actions")
    async with port(tmp_path, None) as http:
        assert (await http.ask("", head=PAUSE, body=b"{}")).status == 200
    assert "User:ANONYMOUS from 127.0.0.1: POST /api/gc/pause of nothing: done" in caplog.messages


@on_loop
async def test_a_stranger_learns_of_health_one_word(tmp_path: Path) -> None:
    async with port(tmp_path) as http:
        await http.user("alice", "wonderland")
        told = json.loads((await http.ask("/health")).body)
        assert set(told) == {"status"}
        told = json.loads((await http.ask("/health", "alice:wonderland")).body)
        assert set(told) == {"status", "node", "problems"}
        assert (await http.ask("/health", "alice:wrong")).status == 401


@on_loop
async def test_a_wrong_password_takes_its_time_and_right_ones_are_compared_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []
    compare = scram.is_password

    def is_password(*given: Any) -> bool:
        compared.append(given)
        return compare(*given)

    monkeypatch.setattr(passwords, "is_password", is_password)
    async with port(tmp_path) as http:
        await http.user("alice", "wonderland")
        for _ in range(3):
            assert (await http.ask("/api/topics", "alice:wonderland")).status == 200
        assert len(compared) == 1
        loop = asyncio.get_running_loop()
        for login in ("alice:wrong", "bob:wonderland"):
            began = loop.time()
            assert (await http.ask("/api/topics", login)).status == 401
            assert loop.time() - began >= FAILED_SECONDS
        assert len(compared) == 3
        # Another password, and none: what was right is not remembered beyond that.
        await http.user("alice", "another")
        assert (await http.ask("/api/topics", "alice:wonderland")).status == 401
        assert (await http.ask("/api/topics", "alice:another")).status == 200
        await http.user("bob", "wonderland")
        await http.node.command(AlterScramCredentials("alice", [ScramMechanism.SHA_256], []))
        assert (await http.ask("/api/topics", "alice:another")).status == 401


@on_loop
async def test_what_is_remembered_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins_module, "MAX_REMEMBERED", 2)
    async with port(tmp_path) as http:
        login = logins_module.Logins(
            lambda: http.node.machine.credentials, lambda: None, SECRET, loop=asyncio.get_running_loop()
        )
        for number in range(4):
            await http.user(f"user{number}", "password")
            given = b"Basic " + base64.b64encode(f"user{number}:password".encode())
            assert await login.admit("GET", [(b"authorization", given)], "127.0.0.1") == f"User:user{number}"
            assert len(login._right) <= 2


def credential(password: str) -> ScramCredential:
    salted = salted_password(password, b"0123456789", 4096, "sha256")
    return credential_of(ScramMechanism.SHA_256, salted, b"0123456789", 4096)


async def status(logins: logins_module.Logins, login: str, address: str = "127.0.0.1") -> int:
    """Of the answer: 200 where the request is let in."""
    given = b"Basic " + base64.b64encode(login.encode())
    found = await logins.admit("GET", [(b"authorization", given)], address)
    return found.status if isinstance(found, logins_module.Denied) else 200


ALICE = ("alice", ScramMechanism.SHA_256)


@pytest.mark.parametrize("after", [None, "another"])
@on_loop
async def test_a_credential_that_goes_during_the_comparison_lets_no_request_in(
    monkeypatch: pytest.MonkeyPatch, after: str | None
) -> None:
    known: dict[tuple[str, int], ScramCredential] = {ALICE: credential("wonderland")}
    compare = scram.is_password

    def is_password(*given: Any) -> bool:
        right = compare(*given)
        del known[ALICE]
        known["bob", ScramMechanism.SHA_256] = credential("x")
        if after is not None:
            known[ALICE] = credential(after)
        return right

    logins = logins_module.Logins(lambda: known, lambda: None, SECRET, loop=asyncio.get_running_loop())
    monkeypatch.setattr(passwords, "is_password", is_password)
    assert await status(logins, "alice:wonderland") == 401
    monkeypatch.setattr(passwords, "is_password", compare)
    assert await status(logins, "alice:wonderland") == 401, "nothing is remembered"
    assert await status(logins, f"alice:{after}") == (401 if after is None else 200)


@on_loop
async def test_a_node_without_users_takes_the_first_user_of_its_file() -> None:
    known: dict[tuple[str, int], ScramCredential] = {}
    loop = asyncio.get_running_loop()
    first = FirstUser("alice", credential("wonderland"))
    logins = logins_module.Logins(lambda: known, lambda: None, SECRET, loop=loop, first_user=first)
    assert await status(logins, "alice:wonderland") == 200
    assert await status(logins, "alice:wrong") == 401
    known[ALICE] = credential("another")
    assert await status(logins, "alice:wonderland") == 401
    known.clear()
    logins = logins_module.Logins(lambda: known, lambda: None, SECRET, loop=loop)
    assert await status(logins, "alice:wonderland") == 503
    given = b"Basic " + base64.b64encode(b"alice:wonderland")
    found = await logins.admit("GET", [(b"authorization", given)], "127.0.0.1")
    assert isinstance(found, logins_module.Denied)
    assert found.why.startswith("this node does not know the users yet: ")
    assert found.headers == {"Retry-After": "1"}


@on_loop
async def test_an_address_has_a_bound_of_logins_and_those_remembered_need_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known: dict[tuple[str, int], ScramCredential] = {ALICE: credential("wonderland")}
    logins = logins_module.Logins(lambda: known, lambda: None, SECRET, loop=asyncio.get_running_loop())
    assert await status(logins, "alice:wonderland") == 200
    gate = threading.Event()
    monkeypatch.setattr(passwords, "is_password", lambda *_: gate.wait(10) and False)
    waiting = [asyncio.create_task(status(logins, f"alice:{n}")) for n in range(MAX_OF_ADDRESS)]
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(5):
            assert await status(logins, "bob:x") == 503
            assert await status(logins, "alice:wonderland") == 200
    finally:
        gate.set()
    await asyncio.sleep(FAILED_SECONDS / 5)
    assert await status(logins, "bob:x") == 503, "those that failed keep their places until they are answered"
    assert set(await asyncio.gather(*waiting)) == {401}
    assert await status(logins, "bob:x") == 401


@on_loop
async def test_guesses_from_some_addresses_keep_no_other_out(monkeypatch: pytest.MonkeyPatch) -> None:
    users = [f"user{number}" for number in range(20)]
    known: dict[tuple[str, int], ScramCredential] = {
        (user, ScramMechanism.SHA_256): credential("wonderland") for user in users
    }
    logins = logins_module.Logins(lambda: known, lambda: None, SECRET, loop=asyncio.get_running_loop())
    ended = False

    async def guess(address: str) -> None:
        while not ended:
            await status(logins, "alice:x", address)
            await asyncio.sleep(0.001)

    guesses = [asyncio.create_task(guess(f"10.0.0.{number % 2}")) for number in range(100)]
    await asyncio.sleep(0.05)
    try:
        told = [await status(logins, f"{user}:wonderland", "10.0.0.9") for user in users]
    finally:
        ended = True
        await asyncio.gather(*guesses)
    assert told == [200] * len(users)


@on_loop
async def test_readers_and_administrators_are_told_apart_by_acls(tmp_path: Path) -> None:
    async with port(tmp_path) as http:
        for user in ("root", "reader", "editor", "nobody"):
            await http.user(user, "password")
        asked: list[tuple[str, str, Operation]] = []

        class Rules(Authorizer):
            def allows(self, principal: str, host: str, operation: Operation, kind: Any, name: str) -> bool:
                asked.append((principal, host, operation))
                both = [Operation.DESCRIBE, Operation.ALTER]
                may = {"User:reader": both[:1], "User:editor": both}.get(principal, [])
                return operation in may or super().allows(principal, host, operation, kind, name)

        section = AuthorizationSection(True, ("User:root",))
        http.node.authorizer = Rules(lambda: http.node.machine.acls, section)
        for user, read, changed in (
            ("root", 200, 200), ("editor", 200, 200), ("reader", 200, 403), ("nobody", 403, 403),
        ):  # fmt: skip
            assert (await http.ask("/api/topics", f"{user}:password")).status == read
            answer = await http.ask("", f"{user}:password", PAUSE, b"{}")
            assert (answer.status == 403) == (changed == 403)
            if changed == 403:
                assert f"strandline acl add User:{user} alter cluster" in answer.body.decode()
        assert ("User:reader", "127.0.0.1", Operation.ALTER) in asked


@on_loop
async def test_a_foreign_page_is_refused_before_its_login_is_looked_at(tmp_path: Path) -> None:
    async with port(tmp_path) as http:
        await http.user("alice", "wonderland")
        head = b"GET /api/topics HTTP/1.1\r\nOrigin: https://evil.example\r\n"
        assert (await http.ask("", "alice:wonderland", head)).status == 403


@on_loop
async def test_silent_strangers_keep_no_user_out(tmp_path: Path) -> None:
    async with port(tmp_path) as http:
        await http.user("alice", "wonderland")
        silent = []
        for _ in range(MAX_CONNECTIONS + 20):
            silent.append(socket.create_connection(("127.0.0.1", http.server.port)))
            await asyncio.sleep(0)
        listener: Any = http.server._listener
        await asyncio.sleep(0.2)
        assert 1 <= listener.under_way <= MAX_CONNECTIONS
        assert (await http.ask("/api/topics", "alice:wonderland")).status == 200
        for each in silent:
            each.close()


@on_loop
async def test_idle_connections_keep_no_user_out(tmp_path: Path) -> None:
    """All connections that there may be have done their handshake and ask nothing."""
    async with port(tmp_path) as http:
        await http.user("alice", "wonderland")
        opened = [
            await asyncio.open_connection("127.0.0.1", http.server.port, ssl=http.context)
            for _ in range(MAX_CONNECTIONS + 5)
        ]
        assert len(http.server._state.connections) == MAX_CONNECTIONS_OF_ADDRESS
        assert (await http.ask("/api/topics", "alice:wonderland")).status == 200
        (first, _), (last, writer) = opened[0], opened[-1]
        assert await asyncio.wait_for(first.read(), 5) == b"", "those that came first have ended"
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert b" 200 OK" in await asyncio.wait_for(last.readline(), 5), "those that came last go on"
        for _, each in opened:
            each.close()


@on_loop
async def test_files_that_no_server_can_be_made_of(tmp_path: Path) -> None:
    node = SmallNode(tmp_path)
    server = AdminServer(node, "127.0.0.1", 0, tls=TlsSettings("/nowhere.pem", "/nowhere.key"))
    with pytest.raises(AdminListenError, match=r"^admin: /nowhere.pem: No such file or directory: let"):
        await server.start()
    await server.stop()
    node.executor.shutdown()


@on_loop
async def test_a_node_that_is_cut_off_changes_nothing_for_users_that_may_be_gone(tmp_path: Path) -> None:
    async with port(tmp_path) as http:
        await http.user("alice", "wonder")
        assert (await http.ask("", "alice:wonder", PAUSE, b"{}")).status == 200
        http.node.registered = False
        refused = await http.ask("", "alice:wonder", PAUSE, b"{}")
        assert (refused.status, "does not reach the controller's leader" in refused.body.decode()) == (
            503,
            True,
        )
        assert (await http.ask("/api/topics", "alice:wonder")).status == 200, "an operator can ask it why"
        assert (await http.ask("", "alice:wrong", PAUSE, b"{}")).status == 401
        http.node.registered = True
        group = http.node.host.groups[0]
        assert reaches_controller(http.node)
        group.roles.adopt_term(group.term + 1)
        assert not reaches_controller(http.node), "it knows no leader now"
        await http.node.led(0)
