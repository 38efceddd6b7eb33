"""The modules of the product."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests import ROOT

PACKAGES: Final = ("cluster", "node", "pyspark_strandline", "snapshot", "statemachine", "strandline")


def modules() -> list[Path]:
    """Return the path of every module of the product."""
    return [path for package in PACKAGES for path in sorted((ROOT / package).glob("**/*.py"))]
