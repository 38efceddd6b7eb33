"""What the tests of all simulations share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_logs() -> Iterator[None]:
    """Simulated nodes log each fault that is injected, which nothing reads."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
