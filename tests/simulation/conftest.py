"""What the tests of all simulations share."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_logs() -> Iterator[None]:
    """Simulated nodes log each fault that is injected, which nothing reads."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(autouse=True)
def collected_once() -> Iterator[None]:
    """Loops and futures form cycles by the thousand: garbage is collected after a test, and not meanwhile.

    What is left is set aside, as it was before: some runs do away with that.
    """
    gc.disable()
    yield
    gc.enable()
    gc.collect()
    gc.freeze()
