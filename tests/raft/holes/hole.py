"""The decorator that runs a scenario with a hole closed, and with it open."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from strandline.node.raft.group import RaftGroup
from strandline.node.raft.rules.replica_state import SafetyViolation
from tests.raft.group_with import group_with

T = TypeVar("T")

NOTICED = (AssertionError, SafetyViolation, pytest.fail.Exception)
"""How a scenario tells that what it shows does not hold."""


def hole(closed: T, reopened: T) -> Callable[[Callable[[T], None]], Callable[[str], None]]:
    """The scenario holds with `closed` and fails with `reopened`, or its test does."""

    def decorate(scenario: Callable[[T], None]) -> Callable[[str], None]:
        @pytest.mark.parametrize("hole", ["closed", "reopened"])
        def test(hole: str) -> None:
            if hole == "closed":
                scenario(closed)
                return
            try:
                scenario(reopened)
            except NOTICED:
                return
            pytest.fail(f"{scenario.__name__} holds although the hole is open: it proves nothing")

        test.__name__ = test.__qualname__ = scenario.__name__
        test.__doc__, test.__module__ = scenario.__doc__, scenario.__module__
        return test

    return decorate


def hole_in(part: type) -> Callable[[Callable[[type[RaftGroup]], None]], Callable[[str], None]]:
    """As `hole`: with the production group, and with one that has `part` in its production part's place."""
    return hole(RaftGroup, group_with(part))
