"""The four published divergences, given their chance on three real nodes: none of them happens."""

from __future__ import annotations

from typing import Final

import pytest

from tests.programs.divergence.cases import CASES, Case
from tests.programs.divergence.run import problems
from tests.programs.divergence.systems import StrandlineNodes
from tests.programs.divergence.walk import WAIT_SECONDS, Found, walk

HELD_SECONDS: Final = 10.0
"""After something above it went. Were it not held, it would be gone then, on two busy cores too."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    """What became of each case, in one absence of one node."""
    system = StrandlineNodes(tmp_path_factory.mktemp("divergence"))
    try:
        system.up()
        walked = walk(system, WAIT_SECONDS, HELD_SECONDS)
    finally:
        system.down()
    return {one.title: one for one in walked}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_what_was_away_serves_what_the_others_have(case: type[Case], found: dict[str, Found]) -> None:
    one = found[case.title]
    assert one.compacted, "the others have compacted past it"
    assert one.held, "it was held for the one that is away"
    assert problems({StrandlineNodes.name: [one]}, [StrandlineNodes.name]) == []
