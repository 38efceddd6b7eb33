"""Tests, the simulator, and programs that measure and load clusters. docs/testing.md shows the folders."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
"""The project's folder."""
