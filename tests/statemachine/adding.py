"""A command that only adds, for coordinators' state machines that count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Add:
    kind: ClassVar[int] = 1
    by: int

    def fields(self) -> list[Any]:
        return [self.by]
