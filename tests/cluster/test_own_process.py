"""A process is itself by its pid, its boot, its start and its command line, and by nothing less."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.cluster.own_process import OwnProcess

SLEEP = shutil.which("sleep") or "/bin/sleep"


def spawn(folder: Path, *command: str) -> OwnProcess:
    process = OwnProcess.spawn(command, folder / "log", dict(os.environ))
    shown = Path(f"/proc/{process.pid}/cmdline")
    while process.alive() and not shown.read_bytes():
        time.sleep(0.001)  # the kernel fills it in a moment after the program has taken over
    return process


def test_it_lives_until_it_is_killed_and_leaves_no_zombie(tmp_path: Path) -> None:
    process = spawn(tmp_path, SLEEP, "60")
    assert process.alive()
    assert process.signal(signal.SIGKILL)
    assert process.wait(30.0)
    assert not Path(f"/proc/{process.pid}").exists()
    assert not process.signal(signal.SIGKILL)


@pytest.mark.parametrize("change", [{"started": 1}, {"boot": "x"}, {"command": (SLEEP, "61")}])
def test_whatever_differs_in_one_thing_is_not_it(tmp_path: Path, change: dict[str, object]) -> None:
    process = spawn(tmp_path, SLEEP, "60")
    other = replace(process, **change)  # type: ignore[arg-type]
    assert not other.alive()
    assert not other.signal(signal.SIGKILL)
    assert process.alive()
    process.signal(signal.SIGKILL)
    assert process.wait(30.0)


def test_a_name_with_parentheses_and_spaces_does_not_confuse_it(tmp_path: Path) -> None:
    program = tmp_path / "a) Z (b 1"
    program.symlink_to(sys.executable)
    process = spawn(tmp_path, str(program), "-c", "import time; time.sleep(60)")
    assert process.alive()
    process.signal(signal.SIGKILL)
    assert process.wait(30.0)


def test_it_comes_back_from_json(tmp_path: Path) -> None:
    process = spawn(tmp_path, SLEEP, "60")
    again = OwnProcess.from_plain(json.loads(json.dumps(process.to_plain())))
    assert again == process
    assert again.signal(signal.SIGKILL)
    assert again.wait(30.0)


def test_wait_is_bounded(tmp_path: Path) -> None:
    process = spawn(tmp_path, SLEEP, "60")
    began = time.monotonic()
    assert not process.wait(0.1)
    assert time.monotonic() - began < 30
    process.signal(signal.SIGKILL)
    assert process.wait(30.0)


def test_it_starts_with_fresh_signals_and_its_own_log(tmp_path: Path) -> None:
    script = "import signal as s, sys; print(s.getsignal(s.SIGINT) is s.default_int_handler, file=sys.stderr)"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = spawn(tmp_path, sys.executable, "-c", script)
        assert process.wait(30.0)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "log").read_text() == "True\n"


def test_it_holds_no_lock_and_no_pipe_of_the_caller(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    process = spawn(tmp_path, SLEEP, "60")
    try:
        os.close(writer)
        os.set_blocking(reader, False)
        assert os.read(reader, 1) == b""  # its end, and no BlockingIOError: nobody has the other side open
    finally:
        os.close(reader)
        process.signal(signal.SIGKILL)
        assert process.wait(30.0)


def test_it_lives_as_long_as_any_of_its_threads(tmp_path: Path) -> None:
    script = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "print('begun', flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    process = spawn(tmp_path, sys.executable, "-c", script)
    stat = Path(f"/proc/{process.pid}/stat")
    deadline = time.monotonic() + 20
    while ") Z " not in stat.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert process.alive()
    assert process.signal(signal.SIGKILL)
    assert process.wait(30.0)
    assert not stat.exists()
