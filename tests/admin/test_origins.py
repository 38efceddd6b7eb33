"""A foreign page in an operator's browser reads and changes nothing; people and Prometheus do."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.node.admin.origins import Origins
from tests.admin.small_node import Client, parsed, small_node
from tests.raft.mesh.mesh_nodes import on_loop

NAMES = ("0.0.0.0", "node-1.example.org")


def judged(host: str | None, origin: str | None = None) -> int | None:
    headers = [(b"accept", b"*/*")]
    if host is not None:
        headers.append((b"host", host.encode()))
    if origin is not None:
        headers.append((b"origin", origin.encode()))
    refusal = Origins(NAMES).refusal(headers)
    return None if refusal is None else refusal[0]


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "LOCALHOST:9644", "localhost.", "node-1.localhost", "127.0.0.1", "127.0.0.1:9644",
        "10.1.2.3:9644", "[::1]:9644", "[fe80::1]", "node-1.example.org", "Node-1.Example.Org:9644", None,
    ],
)  # fmt: skip
def test_addresses_this_machine_and_configured_names_are_let_in(host: str | None) -> None:
    assert judged(host) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:9644", "localhost.evil.example", "notlocalhost",
        "127.0.0.1.evil.example", "node-2.example.org", "x@evil.example",
        "localhost@evil.example", "", ":9644", "[::1", "[evil]",
    ],
)  # fmt: skip
def test_any_other_name_is_not(host: str) -> None:
    assert judged(host) == 421


def test_a_page_of_another_origin_is_refused_and_one_of_this_node_is_not() -> None:
    assert judged("127.0.0.1:9644", "http://127.0.0.1:9644") is None
    for origin in (
        "http://evil.example",
        "null",
        "http://127.0.0.1:8080",
        "http://localhost:9644",
        "",
        "http://[",
    ):
        assert judged("127.0.0.1:9644", origin) == 403


async def asked(client: Client, method: str, path: str, *headers: str, body: str = "") -> tuple[int, str]:
    lines = [f"{method} {path} HTTP/1.1", *headers, "Connection: close", f"Content-Length: {len(body)}"]
    answer = parsed(await client.raw(("\r\n".join(lines) + "\r\n\r\n" + body).encode()))
    return answer.status, answer.body.decode()


@on_loop
async def test_a_rebound_name_changes_nothing_and_is_told_what_to_set(tmp_path: Path) -> None:
    async with small_node(tmp_path) as (node, _, client):
        json = "Content-Type: application/json"
        for path in ("/api/gc/pause", "/api/gc/reset"):
            for headers in (["Host: evil.example"], ["Host: localhost", "Origin: http://evil.example"]):
                status, body = await asked(client, "POST", path, *headers, json, body="{}")
                assert status in (421, 403)
                assert "evil.example" in body
        assert not node.machine.collection_paused
        assert node.collector.resets == 0
        for path in ("/health", "/metrics", "/api/openapi.json", "/none"):
            status, body = await asked(client, "GET", path, "Host: evil.example")
            assert status == 421
            assert "add the name to admin.hosts" in body
            status, _ = await asked(client, "GET", path, f"Host: 127.0.0.1:{client.port}")
            assert status == (404 if path == "/none" else 200)
        status, _ = await asked(client, "POST", "/api/gc/reset", "Host: localhost", json, body="{}")
        assert status == 200
        assert node.collector.resets == 1
