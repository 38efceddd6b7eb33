"""One real node that is a cluster by itself, as a process of a test."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

SECRET = "of a test, and long enough"
SECONDS = 40.0
"""Far more than anything here takes, on a machine that is busy."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def write_config(folder: Path, **changed: str) -> Path:
    """One node that is a cluster by itself; `changed` replaces lines by their key."""
    lines = {
        "data": f'[node]\nid = 1\ndata = "{folder}/data"',
        "nodes": f'[cluster]\nid = "alone"\nsecret = "{SECRET}"\nnodes = ["1@127.0.0.1:{free_port()}"]',
        "kafka": "[kafka]\nport = 0",
        "admin": "[admin]\nport = 0",
        "url": f'[storage]\nurl = "{folder}/objects"',
    } | changed
    path = folder / "node.toml"
    path.touch(0o600)
    path.write_text("\n".join(lines.values()) + "\n")
    return path


@contextlib.contextmanager
def started(config: Path, *arguments: str, file_bytes: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """A node's process; `file_bytes` is the size that its files may have, as on a disk that is full."""
    limit = None if file_bytes is None else (file_bytes, file_bytes)
    process = subprocess.Popen(
        [sys.executable, "-m", "strandline.node.process", "--config", str(config), *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=None if limit is None else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def healthy(folder: Path, process: subprocess.Popen[str]) -> dict[str, int]:
    """Wait until the node serves; what it says of itself."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[1]
        with contextlib.suppress(OSError, ValueError, urllib.error.URLError):
            told: dict[str, int] = json.loads((folder / "data" / "node.json").read_text())
            with urllib.request.urlopen(f"http://127.0.0.1:{told['admin_port']}/health", timeout=5):
                return told
        time.sleep(0.05)
    raise AssertionError("it does not become healthy")


def refusal(process: subprocess.Popen[str]) -> str:
    """The one line of a node that could not start, whatever it had to tell before."""
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 2, errors
    lines = [line for line in errors.splitlines() if line.strip() and " INFO " not in line]
    assert len(lines) == 1, errors
    return lines[0]
