"""An S3 server of its own program on loopback: s3s-fs, which serves a folder.

It is built once, by cargo, into a cache folder that all checkouts of this machine share. Where it cannot be
had, moto's server stands in for it: the protocol is the same, but one Python process is no match for a link
of a hundred megabytes a second, so figures of throughput are then moto's.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Final

VERSION: Final = "0.14.1"
BUCKET: Final = "far"
_KEY: Final = "far-bench"
_REGION: Final = "us-east-1"
_BUILD_SECONDS: Final = 1_200.0
_START_SECONDS: Final = 20.0


class NoServer(Exception):
    """The server cannot be built or does not start; one line that says why and what to do."""


class S3Server:
    """One bucket, served by a process until `close`. `name` says which program it is."""

    def __init__(self, folder: Path, program: Path | None) -> None:
        """`folder` is empty and takes the objects; without a `program` it is moto's, in memory."""
        self.url = f"s3://{BUCKET}"
        self.name = f"s3s-fs {VERSION}" if program is not None else "moto"
        if program is None:
            self._process, self.port = _moto()
        else:
            (folder / BUCKET).mkdir(parents=True)
            self._process, self.port = _s3s(program, folder)

    def options(self, port: int) -> tuple[str, ...]:
        """The settings of a node that reaches the bucket by a port: this one's, or a proxy's before it."""
        named = {
            "endpoint": f"http://127.0.0.1:{port}", "region": _REGION,
            "access_key_id": _KEY, "secret_access_key": _KEY,
        }  # fmt: skip
        return tuple(f"storage.options.{name}={value}" for name, value in named.items())

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        else:
            self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def program() -> Path:
    """The program, built if it is nowhere yet. Raises NoServer."""
    named = os.environ.get("S3S_FS")
    if named:
        if not os.access(named, os.X_OK):
            raise NoServer(f"S3S_FS={named} is no program: name another, or unset it")
        return Path(named)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "strandline-tests" / f"s3s-fs-{VERSION}"
    built = folder / "bin" / "s3s-fs"
    if built.exists():
        return built
    cargo = shutil.which("cargo")
    if cargo is None:
        raise NoServer("s3s-fs is built by cargo, and there is none: install Rust, or set S3S_FS to it")
    command = [
        cargo, "install", "s3s-fs", "--version", VERSION, "--locked", "--features", "binary",
        "--root", str(folder), "--quiet",
    ]  # fmt: skip
    try:
        ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_BUILD_SECONDS)
    except subprocess.TimeoutExpired:
        raise NoServer(f"cargo built no s3s-fs within {_BUILD_SECONDS:.0f} s: try again") from None
    if ended.returncode:
        said = next((line for line in ended.stderr.splitlines() if "error" in line), "no reason given")
        raise NoServer(f"cargo could not build s3s-fs: {said}")
    return built


def _s3s(built: Path, folder: Path) -> tuple[subprocess.Popen[str], int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = int(taken.getsockname()[1])
    command = [
        str(built), "--host", "127.0.0.1", "--port", str(port), "--access-key", _KEY, "--secret-key", _KEY,
        str(folder),
    ]  # fmt: skip
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "RUST_LOG": "off"},
    )
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)) == 0:
                return process, port
        time.sleep(0.05)
    process.kill()
    process.wait()
    raise NoServer(f"s3s-fs did not listen on port {port}: try again, or set S3S_FS to another")


def _moto() -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.objectstore.moto_server"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    port = int(process.stdout.readline())
    make = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
    urllib.request.urlopen(make, timeout=60).close()
    return process, port
