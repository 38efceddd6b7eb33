"""What the tests of all simulations share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_logs(no_logs: None) -> None: ...
