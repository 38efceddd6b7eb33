"""A replica's recorder for tests of coordinators."""

from __future__ import annotations

from typing import Any

from strandline.statemachine.machine import Captured


class Recording:
    """The replica's recorder: what it was told, in order."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def begin_term(self, index: int, term: int, node: int) -> None:
        self.told.append(("term", term))

    def applied(self, index: int, term: int, command: bytes) -> None:
        self.told.append(("applied", index))

    def checkpoint(self, index: int, captured: Captured) -> None:
        self.told.append(("checkpoint", index))

    def restored(self) -> None:
        self.told.append("restored")
