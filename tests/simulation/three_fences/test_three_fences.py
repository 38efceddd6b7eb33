"""Three fences, three latecomers: each fence keeps out its own, and where it is missing that one comes in.

Here is what clients see and what lies in the logs; what audits make of the same runs' storage is in
tests/spark/test_three_fences.py.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.simulation.three_fences.fences import EPOCH, FENCES, GENERATION, SEQUENCE
from tests.simulation.three_fences.matrix import CELLS, NAMES, expected, facts
from tests.simulation.three_fences.scenes import OWN_FENCE, SCENES, outvoted, play


@pytest.mark.parametrize(("scene", "missing"), CELLS, ids=NAMES)
def test_a_fence_keeps_out_its_own_latecomer_and_no_other(scene: str, missing: str | None) -> None:
    outcome, wanted = play(scene, missing), expected(scene, missing)
    assert facts(outcome) == wanted.facts
    assert {one.kind for one in outcome.anomalies} == wanted.anomalies, outcome.anomalies
    assert outcome.findings == []


@pytest.mark.parametrize(("version", "protocol"), [(1, "classic"), (1, "consumer"), (2, "consumer")])
@pytest.mark.parametrize("scene", SCENES)
def test_it_is_so_for_both_versions_of_transactions_and_both_group_protocols(
    scene: str, version: int, protocol: str
) -> None:
    for missing in (None, OWN_FENCE[scene]):
        outcome, wanted = play(scene, missing, version=version, protocol=protocol), expected(scene, missing)
        assert facts(outcome)[:3] == wanted.facts[:3]
        assert len(outcome.refused) == len(wanted.facts.refused)
        assert {one.kind for one in outcome.anomalies} == wanted.anomalies, outcome.anomalies
        assert outcome.findings == []


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_generation_counts_also_where_the_member_is_still_there(protocol: str) -> None:
    outcome = play(outvoted, None, protocol=protocol)
    assert outcome.refused == ["illegal_generation"]
    assert outcome.anomalies == []
    assert [value for values in outcome.visible for value in values if "by the zombie" in value] == []
    assert sum(map(len, outcome.visible)) == 2
    let_in = play(outvoted, GENERATION, protocol=protocol)
    assert let_in.refused == []
    assert {one.kind for one in let_in.anomalies} == {"wrongly_consumed"}
    assert let_in.visible == let_in.log
    assert sum(map(len, let_in.visible)) == 3


ALONE: Final = {
    SEQUENCE: [True, True, True, True],
    EPOCH: [True, True, True, True],
    GENERATION: [False],
}
"""For each place of each fence: whether the others keep the latecomer out when it alone is missing."""


@pytest.mark.parametrize("scene", SCENES)
def test_sequence_and_epoch_stand_twice_and_the_generation_at_apply_alone(
    scene: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = OWN_FENCE[scene]
    kept_out = []
    for place in FENCES[fence]:
        with monkeypatch.context() as patched:
            patched.setitem(FENCES, fence, (place,))
            kept_out.append(facts(play(scene, fence))[:3] == expected(scene, None).facts[:3])
    assert kept_out == ALONE[fence]
