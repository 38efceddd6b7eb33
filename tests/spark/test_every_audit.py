"""Each audit is needed: of some damage it is the only one that tells, or without it two would look alike."""

from __future__ import annotations

from collections.abc import Set

import pytest

from strandline.snapshot.spark.audits.checks import AUDITS
from tests.spark import test_audits, test_compaction_audits, test_inline_audits, test_transaction_audits

ALL: list[tuple[str, Set[str]]] = [
    (name, damage.found_by)
    for damages in (
        test_audits.DAMAGES,
        test_compaction_audits.DAMAGES,
        test_inline_audits.DAMAGES,
        test_transaction_audits.DAMAGES,
    )
    for name, damage in damages.items()
]  # fmt: skip
SECOND = "rows_match_markers"
"""It goes by no offset of a state, so it backs up each of three audits that do, and is alone with none."""


@pytest.mark.parametrize("audit", [one.name for one in AUDITS if one.name != SECOND])
def test_an_audit_alone_finds_some_damage(audit: str) -> None:
    assert [name for name, found_by in ALL if found_by == {audit}]


def test_the_one_that_is_never_alone_backs_up_three_others() -> None:
    pairs = {frozenset(found_by - {SECOND}) for _, found_by in ALL if SECOND in found_by}
    others = ("aborted_index_equals_replay", "removal_offsets_monotone", "last_stable_offset_is_right")
    assert {frozenset({other}) for other in others} <= pairs
