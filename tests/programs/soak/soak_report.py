"""What the report of every soak has."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class SoakReport:
    """Filled in as the run goes; what it says at any moment is true so far."""

    seed: int
    load_seconds: float = 0.0
    seconds: float = 0.0
    kills: int = 0
    """kill -9 to a node that ran, and that was up again before the next."""
    findings: list[str] = field(default_factory=list, kw_only=True)
    folder: str | None = field(default=None, kw_only=True)
    """Where logs, configurations and objects are, if they were kept."""
