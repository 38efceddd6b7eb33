"""What each scene has to come to, with each of the fences missing: the matrix of twelve runs.

Off the diagonal the outcome is that of all fences standing: a fence keeps out its own latecomer, no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from tests.simulation.three_fences.fences import FENCES
from tests.simulation.three_fences.scenes import OWN_FENCE, SCENES, Outcome


class Facts(NamedTuple):
    """What is there: the output's partitions as they were written and as committed readers see them, the
    group's offsets, and what the latecomer was refused with."""

    log: list[list[str]]
    visible: list[list[str]]
    offsets: dict[int, int]
    refused: list[str]


class Expected(NamedTuple):
    """Of one cell: the facts, and who turns red."""

    facts: Facts
    anomalies: frozenset[str] = frozenset()
    """Kinds that the checker of histories names."""
    audits: frozenset[str] = frozenset()
    """Audits with findings."""
    findings: Mapping[str, str] = MappingProxyType({})
    """What some of them have to say."""


KEPT_OUT: Final = {
    "retry": Expected(
        Facts([["first", "third"], ["second", "fourth"]], [["first", "third"], ["second", "fourth"]],
              {0: 1, 1: 1}, [])
    ),
    "restart": Expected(
        Facts(
            [["in-0 by the zombie", "in-0 by the successor", "in-2 by the successor"],
             ["in-1 by the successor"]],
            [["in-0 by the successor", "in-2 by the successor"], ["in-1 by the successor"]],
            {0: 3, 1: 1},
            ["invalid_producer_epoch", "invalid_producer_epoch", "producer_fenced", "producer_fenced"],
        )
    ),
    "rebalance": Expected(
        Facts(
            [["in-0 by the zombie", "in-0 by the successor", "in-2 by the successor"],
             ["in-1 by the zombie", "in-1 by the successor"]],
            [["in-0 by the successor", "in-2 by the successor"], ["in-1 by the successor"]],
            {0: 3, 1: 1},
            ["unknown_member_id"],
        )
    ),
}  # fmt: skip

LET_IN: Final = {
    "retry": Expected(
        Facts(
            [["first", "third", "third"], ["second", "fourth", "fourth"]],
            [["first", "third", "third"], ["second", "fourth", "fourth"]],
            {0: 1, 1: 1},
            [],
        ),
        frozenset({"duplicates"}),
        frozenset({"producer_sequences", "replay"}),
        {"producer_sequences": "has sequence 1 twice: 2 is next"},
    ),
    "restart": Expected(
        Facts(
            [["in-0 by the zombie", "in-0 by the successor", "in-2 by the successor"],
             ["in-1 by the successor", "in-1 by the zombie"]],
            [["in-0 by the successor", "in-2 by the successor"],
             ["in-1 by the successor", "in-1 by the zombie"]],
            {0: 1, 1: 1},
            [],
        ),
        frozenset({"lost_writes", "torn_transactions", "wrongly_consumed"}),
        frozenset({"producer_sequences", "replay", "every_marker_has_its_transaction"}),
        {
            "producer_sequences": "epoch 0 goes back from epoch 2",
            "every_marker_has_its_transaction": "was never decided",
        },
    ),
    "rebalance": Expected(
        Facts(
            KEPT_OUT["rebalance"].facts.log, KEPT_OUT["rebalance"].facts.log, {0: 1, 1: 1}, []
        ),
        frozenset({"wrongly_consumed"}),
        frozenset({"replay", "transactions_are_whole"}),
        {"transactions_are_whole": "which no member of the group's generation sent"},
    ),
}  # fmt: skip

CELLS: Final = [(scene, missing) for scene in SCENES for missing in (None, *FENCES)]
NAMES: Final = [f"{scene}-{missing or 'none'}" for scene, missing in CELLS]


def expected(scene: str, missing: str | None) -> Expected:
    """Of one cell of the matrix."""
    return (LET_IN if missing == OWN_FENCE[scene] else KEPT_OUT)[scene]


def facts(outcome: Outcome) -> Facts:
    return Facts(outcome.log, outcome.visible, outcome.offsets, outcome.refused)
