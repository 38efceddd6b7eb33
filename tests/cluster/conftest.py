"""Fixtures of the tests of the command line."""

from __future__ import annotations

import socket

import pytest


@pytest.fixture
def nowhere() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"
