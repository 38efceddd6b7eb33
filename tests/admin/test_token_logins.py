"""HTTP logins by tokens: the rules of Kafka's ports, the roles of ACLs, and the command that shows one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from strandline.cluster.admin_client import AdminClient, Answer
from strandline.cluster.client_settings import CURRENT
from strandline.cluster.token_file import OAUTHBEARER, TOKEN_URL
from strandline.node.admin.logins import Denied, Logins
from strandline.node.admin.server import AdminListenError, AdminServer
from strandline.node.config.authorization import AuthorizationSection
from strandline.node.kafka.handlers.authorizer import Authorizer
from strandline.node.kafka.handlers.sasl import FAILED_SECONDS
from strandline.node.kafka.wire.session import VIEWS
from strandline.node.oauth.bearer_tokens import BearerTokens
from strandline.node.oauth.token_settings import TokenSettings
from strandline.node.tls.keeper import TlsSettings
from strandline.statemachine.controller.acl import Operation
from tests.admin.small_node import SmallNode
from tests.kafka.wire.certificates import Authority
from tests.oauth.issuer import AUDIENCE, ISSUER, token, tokens
from tests.raft.mesh.mesh_nodes import on_loop

SECRET = b"the secret of the cluster"
Ask = Callable[..., Any]


class Port:
    """A node's HTTP port, asked by a command that has a token in a file."""

    def __init__(self, folder: Path, node: SmallNode, server: AdminServer, ca: str) -> None:
        self.node, self._server, self._ca = node, server, ca
        self._file = folder / "token"
        self._file.touch(0o600)

    async def ask(
        self, bearer: str, method: str = "GET", path: str = "/api/topics", body: Any = None
    ) -> Answer:
        self._file.write_text(bearer)
        settings = {
            "sasl.mechanism": OAUTHBEARER,
            TOKEN_URL: self._file.as_uri(),
            "ssl.ca.location": self._ca,
        }

        def asked() -> Answer:
            CURRENT.set(settings)
            return AdminClient(f"https://127.0.0.1:{self._server.port}").request(method, path, body)

        return await asyncio.to_thread(asked)


@asynccontextmanager
async def port(folder: Path) -> AsyncIterator[Port]:
    authority = Authority(folder)
    node = SmallNode(folder)
    tls = TlsSettings(*authority.issue("node"))
    server = AdminServer(node, "127.0.0.1", 0, tls=tls, secret=SECRET, tokens=tokens(folder))
    try:
        await node.start({"orders": 1})
        await server.start()
        yield Port(folder, node, server, authority.path)
    finally:
        await server.stop()
        await node.stop()


@on_loop
async def test_a_right_token_is_let_in_and_all_others_get_the_same_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with port(tmp_path) as http:
        good = await http.ask(token())
        assert (good.status, good.body["topics"][0]["name"]) == (200, "orders"), "a cluster without one user"
        began, wrong = time.monotonic(), []
        for bearer in (
            token(aud="other"), token(iss="other"), token("rsa-2", headers={"kid": "rsa-1"}),
            token(sub=VIEWS), token(sub="ANONYMOUS"), token().rsplit(".", 1)[0] + ".", "abc",
            token(nbf=int(time.time()) + 1000),
        ):  # fmt: skip
            answer = await http.ask(bearer)
            wrong.append((answer.status, answer.body["error"]))
        assert set(wrong) == {(401, "the token proves nothing: the node's log has the cause")}
        assert time.monotonic() - began >= len(wrong) * FAILED_SECONDS
        assert "a login failed: the token is not right: InvalidAudienceError" in caplog.text
        assert "a login failed: the token has the name of the processes of views" in caplog.text
        assert "a login failed: the token has the name of clients that prove none" in caplog.text
        assert "eyJ" not in caplog.text
        page = (await http.ask(token(), path="/metrics")).body
        assert 'strandline_http_token_key_reads_total{result="ok"} 2' in page
        assert 'strandline_http_token_key_reads_total{result="failed"} 0' in page
        assert "strandline_http_certificate_end_seconds" in page


@on_loop
async def test_a_token_has_the_rights_of_its_user(tmp_path: Path) -> None:
    async with port(tmp_path) as http:
        asked = []

        class Rules(Authorizer):
            def allows(self, principal: str, host: str, operation: Operation, *what: Any) -> bool:
                asked.append((principal, operation))
                return super().allows(principal, host, operation, *what)

        section = AuthorizationSection(True, ("User:root",))
        http.node.authorizer = Rules(lambda: http.node.machine.acls, section)
        assert (await http.ask(token())).status == 403
        assert (await http.ask(token(sub="root"))).status == 200
        assert (await http.ask(token(sub="root"), "POST", "/api/gc/pause", {})).status == 200
        assert asked == [
            ("User:alice", Operation.DESCRIBE), ("User:root", Operation.DESCRIBE),
            ("User:root", Operation.ALTER),
        ]  # fmt: skip


async def heard(logins: Logins, header: bytes) -> int:
    found = await logins.admit("GET", [(b"authorization", header)], "127.0.0.1")
    return found.status if isinstance(found, Denied) else 200


@on_loop
async def test_a_node_that_does_not_know_the_acls_takes_no_token(tmp_path: Path) -> None:
    knows, loop = False, asyncio.get_running_loop()
    logins = Logins(dict, lambda: None, SECRET, loop=loop, tokens=tokens(tmp_path), knows_acls=lambda: knows)
    assert await heard(logins, b"Bearer " + token().encode()) == 503
    knows = True
    assert await heard(logins, b"bearer  " + token().encode()) == 200
    assert await heard(logins, b"Bearer " + token().encode() + b", Basic YTpi") == 503, (
        "no token, and no user"
    )
    without = Logins(dict, lambda: None, SECRET, loop=loop)
    assert await heard(without, b"Bearer " + token().encode()) == 503, "nor where none is taken"


@on_loop
async def test_keys_that_cannot_be_read_are_told_at_the_start(tmp_path: Path) -> None:
    node = SmallNode(tmp_path)
    missing = BearerTokens(TokenSettings(str(tmp_path / "none.json"), ISSUER, AUDIENCE))
    pair = Authority(tmp_path).issue("node")
    server = AdminServer(node, "127.0.0.1", 0, tls=TlsSettings(*pair), secret=SECRET, tokens=missing)
    try:
        await node.start({})
        with pytest.raises(AdminListenError, match=r"admin\.oauth_keys: .*none.json: No such file"):
            await server.start()
    finally:
        await server.stop()
        await node.stop()
