"""moto's S3 for the tests of a module, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    command = [sys.executable, "-m", "tests.objectstore.moto_server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
        server.stdin.close()
        server.wait(10)
