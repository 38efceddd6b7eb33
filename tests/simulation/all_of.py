"""Several context managers as one: holes that are opened together, periods that are shortened together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any


@contextmanager
def all_of(managers: Iterable[AbstractContextManager[Any]]) -> Iterator[None]:
    """Enter each as it comes; leave them the other way round."""
    with ExitStack() as stack:
        for manager in managers:
            stack.enter_context(manager)
        yield
