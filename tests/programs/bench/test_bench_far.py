"""The run on a store that is far away: its proxy, its server, and what it says of each figure."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.peers import s3_server
from tests.peers.s3_server import NoServer, program
from tests.programs.bench.far_bench import LINES, Line, lines
from tests.programs.bench.far_proxy import FarProxy
from tests.programs.bench.measures import Result


@pytest.mark.s3
@pytest.mark.timeout(120)
def test_each_figure_is_measured(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, "-P", "-m", "tests.programs.bench.run", "far", "--server", "moto", "--tiny",
            "--cases", "latency", "large", "--ms", "30", "--jitter", "0", "--json", "--folder", str(tmp_path),
        ],
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    for line in LINES:
        if line.case in ("latency", "large"):
            assert report[line.case]["figures"][line.figure] >= 0
    assert report["large"]["figures"]["p50"] >= 0.03, "an upload has to go there and back"
    assert list(tmp_path.iterdir()) == []


def echo_server() -> tuple[socket.socket, int]:
    """Answers each of two connections with what it sends, and closes."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for _ in range(2):
            connection, _ = listening.accept()
            with connection:
                connection.sendall(connection.recv(100))

    threading.Thread(target=serve, daemon=True).start()
    return listening, int(listening.getsockname()[1])


def test_answers_come_late_and_whole_though_the_store_closes_behind_them() -> None:
    listening, port = echo_server()
    proxy = FarProxy(port, 200.0, 0.0)
    try:
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client:
                began = time.monotonic()
                client.sendall(b"hello")
                answer = client.recv(100)
                assert (answer, client.recv(100)) == (b"hello", b"")
                assert time.monotonic() - began >= 0.2
    finally:
        proxy.close()
        listening.close()


def test_a_figure_is_held_against_what_is_wanted() -> None:
    assert Line("e2e", "p99", "p99", "s", 0.04).holds(0.041) is False
    assert Line("e2e", "p99", "p99", "s", 0.04).holds(0.04) is True
    assert Line("throughput", "written", "rate", "B/s", 1e8, least=True).holds(9e7) is False
    assert Line("large", "p50", "p50", "s").holds(1.0) is None
    found = {"e2e": Result({"p50": 0.004, "p99": 0.08})}
    assert lines(["e2e"], found) == [
        ["produce to consume", "p50", "-", "4.00 ms", ""],
        ["", "p99", "40.0 ms", "80.0 ms", "does not hold"],
    ]


def test_a_server_that_cannot_be_had_is_told_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3S_FS", str(tmp_path / "nowhere"))
    with pytest.raises(NoServer, match="name another, or unset it"):
        program()
    monkeypatch.delenv("S3S_FS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(NoServer, match="install Rust, or set S3S_FS"):
        program()
    built = tmp_path / "strandline-tests" / f"s3s-fs-{s3_server.VERSION}" / "bin" / "s3s-fs"
    built.parent.mkdir(parents=True)
    built.touch()
    assert program() == built
    os.chmod(built, 0o755)
    monkeypatch.setenv("S3S_FS", str(built))
    assert program() == built
