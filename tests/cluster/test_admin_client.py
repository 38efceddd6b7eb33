"""The HTTP client: answers as they are, one line for whatever else comes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from strandline.cluster.admin_client import AdminClient, Unreachable, first_answer
from strandline.cluster.failure import CommandFailed
from strandline.cluster.ports import free_ports


def request(connection: socket.socket) -> bytes:
    """The whole of one; its body may come later than its head."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next((int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length: ")), 0)
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


@contextmanager
def answering(*answers: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that gives these answers, one to each connection; what it was asked."""
    asked: list[bytes] = []

    def serve() -> None:
        for answer in answers:
            connection, _ = server.accept()
            with connection:
                asked.append(request(connection))
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}", asked
        thread.join(5)


def http(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


def nobody() -> str:
    return f"127.0.0.1:{free_ports([1])[1].kafka}"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (http(200, b'{"problems": []}'), None),
        (http(503, b'{"problems": [{"reason": "a", "meaning": "no leader: wait"}]}'), "no leader: wait"),
        (http(503, b'{"error": "too\\nmany requests."}'), "too many requests"),
        (http(500, b"Internal\nerror"), "Internal error"),
        (http(502, b""), "HTTP status 502"),
    ],
)
def test_health(answer: bytes, problem: str | None) -> None:
    with answering(answer) as (address, asked):
        assert AdminClient(address).health() == problem
    assert asked[0].startswith(b"GET /health HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "answer", [b"", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 X\r\nContent-Length: 9\r\n\r\n{}"]
)
def test_what_is_no_answer_is_unreachable(answer: bytes) -> None:
    with answering(answer) as (address, _), pytest.raises(Unreachable):
        AdminClient(address).request("GET", "/x", timeout=2.0)


def test_no_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://{nobody()}")
    with answering(http(200, b"{}")) as (address, _):
        assert AdminClient(address).health() is None


def test_no_redirect_is_followed() -> None:
    with answering(http(200, b"{}")) as (other, asked):
        told = b"HTTP/1.1 302 X\r\nLocation: http://%s/\r\nContent-Length: 0\r\n\r\n" % other.encode()
        with answering(told) as (address, _):
            assert AdminClient(address).request("GET", "/x").status == 302
        assert not asked
        AdminClient(other).request("GET", "/x")


def test_nobody_there() -> None:
    address = nobody()
    assert AdminClient(address).health() == (
        f"no answer at http://{address}/health ([Errno 111] Connection refused)"
    )


def test_the_next_node_is_asked_when_one_cannot_answer_now() -> None:
    with (
        answering(http(503, b'{"error": "starting"}')) as (sick, _),
        answering(http(200, b'{"a": 1}')) as (well, asked),
    ):
        assert first_answer([nobody(), sick, well], "POST", "/do", {"x": 2}) == {"a": 1}
    assert asked[0].endswith(b'\r\n\r\n{"x": 2}')


def test_a_refusal_is_final() -> None:
    with answering(http(400, b'{"error": "no such topic"}')) as (address, _):
        with pytest.raises(CommandFailed) as caught:
            first_answer([address, nobody()], "POST", "/do")
        assert str(caught.value) == f"POST /do failed ({address}: no such topic); correct what was asked for"


def test_all_silent() -> None:
    with pytest.raises(CommandFailed, match=r"Connection refused.*check that the nodes run"):
        first_answer([nobody()], "GET", "/x")


def test_another_server_is_not_taken_for_a_node() -> None:
    with answering(http(200, b"<html>")) as (address, _), pytest.raises(CommandFailed, match="not a node's"):
        first_answer([address], "GET", "/x")
