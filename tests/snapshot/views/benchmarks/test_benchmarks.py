"""Queries of Nexmark and TPC-H as views, each against DuckDB's answer while rows come, change and go."""

from __future__ import annotations

import pytest

from strandline.snapshot.views.sql.programs import program_of
from strandline.statemachine.views.refusals import Code, Refused
from tests.snapshot.views.benchmarks import nexmark, tpch
from tests.snapshot.views.benchmarks.changing import check_query


@pytest.mark.parametrize("name", nexmark.QUERIES)
def test_nexmark(name: str) -> None:
    assert check_query(nexmark.Nexmark(1), "", nexmark.QUERIES[name])


@pytest.mark.parametrize("name", tpch.QUERIES)
def test_tpc_h(name: str) -> None:
    assert check_query(tpch.TpcH(1), tpch.VIEWS.get(name, ""), tpch.QUERIES[name])


REFUSED = {
    **{f"nexmark {name}": (nexmark.Nexmark, query) for name, query in nexmark.REFUSED.items()},
    **{f"tpc-h {name}": (tpch.TpcH, query) for name, query in tpch.REFUSED.items()},
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_query_beyond_the_subset_is_refused_with_a_reason(name: str) -> None:
    kind, query = REFUSED[name]
    world = kind(1)
    with pytest.raises(Refused) as refused:
        program_of(f"{world.declarations()} CREATE VIEW v AS {query};")
    assert refused.value.code in (Code.UNSUPPORTED_SQL, Code.NOT_DETERMINISTIC)
    assert refused.value.cure
