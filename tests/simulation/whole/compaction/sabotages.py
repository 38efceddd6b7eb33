"""Rules of compaction taken out again, one at a time: the simulation must find every one.

What it takes is told in docs/simulation.md. Nothing here is ever imported by the product.
"""

from __future__ import annotations

from tests.simulation.sabotage import Sabotage

SABOTAGES: dict[str, Sabotage] = {}
