"""Forks of the process that has Spark's Python modules loaded, beside processes that begin from nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from strandline.snapshot.spark import fork_request
from strandline.snapshot.spark.fork_server import ForkServer

_SECONDS: Final = 60.0
_MODULE: Final = """
import json, os, signal, sys, time
told = {
    "name": __name__, "arguments": sys.argv[1:], "folder": os.getcwd(), "path": sys.path,
    "environment": dict(os.environ), "read": sys.stdin.read(), "hash": hash("text"),
    "child": int(signal.getsignal(signal.SIGCHLD)), "hour": time.localtime(0)[3],
    "modules": sorted(sys.modules),
}
print(json.dumps(told))
print("a complaint", file=sys.stderr)
sys.exit(3)
"""


@pytest.fixture
def server() -> Iterator[ForkServer]:
    made = ForkServer()
    yield made
    made.stop()


def _run(folder: Path, *arguments: str, more: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What the module says of itself, asked for at the server's socket in the folder."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    (work / "told.py").write_text(_MODULE)
    asks = [sys.executable, "-I", "-S", fork_request.__file__, str(folder / "forks"), sys.executable]
    done = subprocess.run(
        [*asks, *arguments], check=False, capture_output=True, text=True, timeout=_SECONDS, cwd=work,
        input="in",
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": f"{folder}{os.pathsep}/some", **(more or {})},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (3, "a complaint\n")
    told: dict[str, Any] = json.loads(done.stdout)
    told["loaded"] = "strandline.snapshot.spark.source" in told["modules"]
    return told


def test_a_fork_is_as_the_process_that_spark_would_have_started(server: ForkServer, tmp_path: Path) -> None:
    arguments = ("-m", "told", "a b", "")
    given = {"TOLD": "1=2", "TZ": "Far-11"}
    plain = _run(tmp_path, *arguments, more=given)
    assert not plain["loaded"], "there is no server yet"
    assert plain["hour"] == 11
    server.start(tmp_path / "forks")
    for _ in range(2):
        fork = _run(tmp_path, *arguments, more=given)
        assert fork["loaded"]
        same = plain.keys() - {"modules", "loaded"}
        assert {name: fork[name] for name in same} == {name: plain[name] for name in same}
    # Each worker would draw the same numbers from a state that was there before they parted.
    assert "numpy" in fork["modules"]
    assert "numpy.random" not in fork["modules"]


@pytest.mark.parametrize("name", ["PYTHONHASHSEED", "OMP_NUM_THREADS", "LD_PRELOAD", "LC_ALL"])
def test_what_python_looks_at_when_it_starts_is_no_forks_to_follow(
    server: ForkServer, tmp_path: Path, name: str
) -> None:
    server.start(tmp_path / "forks")
    other = {name: {"LD_PRELOAD": "", "LC_ALL": "POSIX"}.get(name, "7")}
    assert not _run(tmp_path, "-m", "told", more=other)["loaded"]
    assert _run(tmp_path, "-m", "told")["loaded"]
    assert not _run(tmp_path, "told.py")["loaded"], "a file is no module"


def test_a_fork_ends_without_a_word_where_the_process_that_asked_is_gone(
    server: ForkServer, tmp_path: Path
) -> None:
    """As Java ends its Python when a session ends."""
    server.start(tmp_path / "forks")
    work, said = tmp_path / "work", tmp_path / "said"
    work.mkdir()
    (work / "waits.py").write_text("import sys\nprint('here', flush=True)\nsys.stdin.read()\nsys.exit(0)\n")
    asks = [sys.executable, "-I", "-S", fork_request.__file__, str(tmp_path / "forks"), sys.executable]
    with (
        said.open("w") as err,
        subprocess.Popen(
            [*asks, "-m", "waits"], cwd=work, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        ) as asker,
    ):  # fmt: skip
        assert asker.stdin is not None
        assert asker.stdout is not None
        assert asker.stdout.readline() == b"here\n"
        asker.kill()
        asker.wait()
        asker.stdin.close()
        assert asker.stdout.read() == b"", "until the fork has ended"
    assert said.read_text() == ""


@pytest.mark.parametrize(
    "work",
    [
        "pyspark.worker",
        "pyspark.sql.worker.lookup_data_sources",
        "pyspark.sql.streaming.python_streaming_source_runner",
    ],
)
def test_workers_of_all_kinds_end_without_a_word_once_spark_has_no_use_for_them(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    """It closes the connection of one that had nothing to do for a minute."""
    monkeypatch.chdir(tmp_path)  # the whole path of a socket may be too long for it
    server.start(tmp_path / "forks")
    said = tmp_path / "said"
    asks = [sys.executable, "-I", "-S", fork_request.__file__, str(tmp_path / "forks"), sys.executable]
    given = {"PYTHON_UNIX_DOMAIN_ENABLED": "true", "PYTHON_WORKER_FACTORY_SOCK_DIR": "."}
    with (
        said.open("w") as err,
        subprocess.Popen(
            [*asks, "-m", "pyspark.daemon", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err,
            env={**os.environ, "PYTHONHASHSEED": "0", **given}, start_new_session=True,
        ) as daemon,
        socket.socket(socket.AF_UNIX) as spark,
    ):  # fmt: skip
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        spark.connect(daemon.stdout.read(int.from_bytes(daemon.stdout.read(4), "big")))
        worker = psutil.Process(int.from_bytes(spark.recv(4), "big"))
        spark.close()
        worker.wait(_SECONDS)
        daemon.stdin.close()
    assert said.read_text() == ""


def _threads(process: psutil.Process) -> list[str]:
    """Names of threads other than the one of Arrow's jemalloc, whose handlers make forks safe."""
    folder = Path("/proc", str(process.pid), "task")
    names = [(thread / "comm").read_text().strip() for thread in folder.iterdir()]
    return [name for name in names if name != "jemalloc_bg_thd"]


def test_the_server_has_one_thread_and_ends_with_the_program(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from strandline.snapshot.spark.fork_server import FORK_SERVER\n"
        "FORK_SERVER.start(Path(sys.argv[1]))\n"
        "print('started', flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "forks")], stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "started\n"
            (server,) = psutil.Process(program.pid).children()
            assert _run(tmp_path, "-m", "told")["loaded"]
            assert len(_threads(server)) == 1, "a fork has none but the one that forks"
        finally:
            program.kill()
    _, alive = psutil.wait_procs([server], timeout=_SECONDS)
    assert not alive


def test_forks_that_live_on_keep_neither_the_socket_nor_what_ended_before(tmp_path: Path) -> None:
    """Who asks at a socket that one of them had would wait for an answer."""
    server = ForkServer()
    (tmp_path / "waits.py").write_text("import sys\nprint('there', flush=True)\nsys.stdin.read()\n")
    asks = [sys.executable, "-I", "-S", fork_request.__file__, str(tmp_path / "forks"), sys.executable]
    server.start(tmp_path / "forks")
    try:
        with subprocess.Popen(
            [*asks, "-m", "waits"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        ) as waits:  # fmt: skip
            assert waits.stdout is not None
            assert waits.stdout.readline() == "there\n"
            assert server._process is not None
            for _ in range(3):
                assert _run(tmp_path, "-m", "told")["loaded"]
                began = time.monotonic()
                while True:  # one tells its status before it ends
                    forks = psutil.Process(server._process.pid).children()
                    ended = [one for one in forks if one.status() == psutil.STATUS_ZOMBIE]
                    if len(forks) - len(ended) == 1:
                        break
                    assert time.monotonic() - began < _SECONDS
            assert len(ended) <= 1, "the last one, which no request came after"
            server.stop()
            began = time.monotonic()
            assert not _run(tmp_path, "-m", "told")["loaded"]
            assert time.monotonic() - began < fork_request._SECONDS
            waits.communicate(timeout=_SECONDS)
        assert waits.returncode == 0
    finally:
        server.stop()


def test_who_asks_for_nonsense_is_sent_away(server: ForkServer, tmp_path: Path) -> None:
    server.start(tmp_path / "forks")
    for told in (b"", b"\xff\xff\xff\xff", b"\0\0\0\5half"):
        with socket.socket(socket.AF_UNIX) as asks:
            asks.connect(str(tmp_path / "forks"))
            asks.sendall(told)
            asks.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):  # where something is not even read
                assert asks.recv(1) == b""
    assert _run(tmp_path, "-m", "told")["loaded"]


def test_where_there_can_be_no_more_processes_the_one_there_goes_on(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from strandline.snapshot.spark import fork_server\n"
        "def fork():\n"
        "    raise BlockingIOError\n"
        "os.fork = fork\n"
        "fork_server.main(int(sys.argv[1]))\n"
    )
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "forks"))
        listening.listen()
        server = subprocess.Popen(
            [sys.executable, "-c", script, str(listening.fileno())], stdin=subprocess.PIPE,
            pass_fds=[listening.fileno()], env={**os.environ, "PYTHONHASHSEED": "0"},
        )  # fmt: skip
    try:
        assert not _run(tmp_path, "-m", "told")["loaded"]
    finally:
        server.communicate(timeout=_SECONDS)
    assert server.returncode == 0, "it waits for the next one"


def test_without_a_server_nothing_waits_for_one(server: ForkServer, tmp_path: Path) -> None:
    server.start(tmp_path / "forks")
    server.stop()
    began = time.monotonic()
    assert not _run(tmp_path, "-m", "told")["loaded"]
    assert time.monotonic() - began < fork_request._SECONDS
