"""Operators against plain Python: what they give and keep depends on the rows, and not on the steps."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.snapshot.views import hashing
from strandline.snapshot.views.errors import ViewError, ViewInvariant, ViewStopped
from strandline.snapshot.views.linear_aggregate import LinearAggregate
from strandline.snapshot.views.operator import Operator, StateManifest
from strandline.snapshot.views.run import ALL_HASHES
from strandline.snapshot.views.sink import Phase, Sink
from strandline.snapshot.views.zset import ZSet, chosen, zset
from strandline.statemachine.views.aggregates import Aggregate
from strandline.statemachine.views.types import Type
from tests.snapshot.views import circuits
from tests.snapshot.views.checks import check_cuts, check_fork, content, inputs
from tests.snapshot.views.circuits import REGISTRY, SUM, WHOLE, played
from tests.snapshot.views.collisions import four_bit_hashes
from tests.snapshot.views.deltas import (
    CUTS,
    FACTS,
    FEW,
    SEARCH,
    Change,
    Row,
    counted,
    histories,
    logs,
    of,
)
from tests.snapshot.views.sabotages import SABOTAGES, Sabotage


@pytest.mark.parametrize("name", REGISTRY)
@FEW
@given(histories(), logs(), CUTS, CUTS, st.booleans())
def test_any_cut_gives_the_same_content_output_and_digests(
    name: str, facts: list[Change], log: list[Change], cuts: list[int], other: list[int], collide: bool
) -> None:
    with four_bit_hashes(collide):
        check_cuts(name, facts, log, cuts, other)


@pytest.mark.parametrize("name", REGISTRY)
@FEW
@given(histories(), logs(), CUTS, CUTS)
def test_a_state_that_is_loaded_goes_on_as_the_one_it_was_taken_from(
    name: str, facts: list[Change], log: list[Change], cuts: list[int], other: list[int]
) -> None:
    check_fork(name, facts, log, cuts, other)


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.name)
def test_a_rule_that_is_taken_out_is_found(sabotage: Sabotage) -> None:
    @settings(SEARCH)
    @given(histories(), logs(), CUTS, CUTS)
    def checked(facts: list[Change], log: list[Change], cuts: list[int], other: list[int]) -> None:
        sabotage.found_by(sabotage.circuit, facts, log, cuts, other)

    with sabotage.opened(), pytest.raises((AssertionError, ViewError, KeyError)):
        checked()


@pytest.mark.parametrize("name", REGISTRY)
@FEW
@given(histories(), logs())
def test_whatever_is_retracted_leaves_nothing(name: str, facts: list[Change], log: list[Change]) -> None:
    circuit = REGISTRY[name]()
    if name == "constant":
        return  # whatever its records are, its row is there
    back = [(row, -weight) for row, weight in facts]
    gone = [((row[0], None, None), -1) for row, _ in log]
    topic = played(circuit, inputs(circuit, [of(facts), of(back)], [of(log), of(gone)]))
    assert set(circuit.digests().values()) == {0}
    assert topic.rows == {}
    assert all(len(spine) == 0 for each in circuit.operators.values() for spine in each.current.spines)


def test_every_class_of_operators_is_in_the_registry() -> None:
    there = {type(each) for build in REGISTRY.values() for each in build().operators.values()}
    assert there == set(Operator.__subclasses__())


@pytest.mark.parametrize("name", ["arrange", "upsert", "aggregate", "values", "first", "distinct"])
@FEW
@given(histories(), logs())
def test_pieces_of_a_batch_make_the_state(name: str, facts: list[Change], log: list[Change]) -> None:
    """What `state_plan` says: pieces by the hash of its keys, one step each, are together the state."""
    build = REGISTRY[name]
    whole = build()
    changes = of(log if "log" in whole.sources else facts)
    first = next(iter(whole.operators))
    whole.step({next(iter(whole.sources)): changes})
    keys = whole.operators[first].state_plan().keys
    assert keys is not None
    piece_of = hashing.key_hash(chosen(changes.rows, keys[0])) % 3
    total, rows = 0, Counter[Row]()
    for piece in range(3):
        part = build()
        of_piece = piece_of == piece
        part.step({next(iter(part.sources)): ZSet(changes.rows.filter(of_piece), changes.weights[of_piece])})
        total += part.digests()[first]
        rows.update(content(part, first))
    assert total % hashing.DIGEST_MODULUS == whole.digests()[first]
    assert rows == content(whole, first)


def sums(schema: Any, aggregates: Sequence[Aggregate]) -> LinearAggregate:
    return LinearAggregate("sums", schema, (0,), aggregates)


def test_a_sum_of_whole_numbers_is_right_beyond_64_bits_and_stops_where_the_result_is() -> None:
    largest = 2**63 - 1
    one = sums((WHOLE, WHOLE), [Aggregate(SUM, 1, Type.BIGINT)])
    schema = (WHOLE, WHOLE)
    out, state = one.step((zset(schema, [(1, largest), (1, largest), (1, -largest)]),))
    assert out.rows.rows() == [(1, largest)]
    one.install(state)
    with pytest.raises(ViewStopped, match="SUM is beyond"):
        one.step((zset(schema, [(1, 1)]),))
    assert counted(one.contents((), ALL_HASHES)) == Counter([(1, largest)]), "the step has changed nothing"


def test_a_change_that_is_not_seen_is_not_told() -> None:
    one = sums((WHOLE, WHOLE), [Aggregate(SUM, 1, Type.BIGINT)])
    schema = (WHOLE, WHOLE)
    _, state = one.step((zset(schema, [(1, 5), (2, 7)]),))
    one.install(state)
    out, after = one.step((zset(schema, [(1, 3), (1, 2), (1, 5), (2, 1)], [1, 1, -1, 1]),))
    assert counted(out) == Counter({(2, 7): -1, (2, 8): 1})
    assert len(out) == 2
    assert after.digest != state.digest, "group 1 has another number of rows"


def test_zeros_are_one_and_so_are_nans() -> None:
    other_nan = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]
    circuit = circuits.arrange()
    circuit.step({"facts": zset(FACTS, [(1, "a", 0.0), (2, "a", math.nan)])})
    circuit.step({"facts": zset(FACTS, [(1, "a", -0.0), (2, "a", other_nan)], [-1, -1])})
    assert circuit.digests() == {"kept": 0}
    assert content(circuit, "kept") == Counter()


def test_a_row_that_was_never_there_cannot_be_retracted() -> None:
    one = sums(FACTS, [])
    with pytest.raises(ViewInvariant, match="more often"):
        one.step((zset(FACTS, [(1, "a", 1.0)], [-1]),))


def test_a_state_has_one_owner() -> None:
    live = circuits.aggregate()
    taken = live.state()
    circuits.aggregate().load(taken)
    with pytest.raises(ViewInvariant, match="the state of groups cannot also be that of groups"):
        circuits.aggregate().load(taken)


def test_the_state_of_another_operator_is_refused() -> None:
    states = circuits.arrange().state()
    with pytest.raises(ViewInvariant, match="has 1 spines, not 2"):
        circuits.aggregate().operators["groups"].load(states["kept"])
    live = circuits.arrange()
    live.step({"facts": of([((1, "a", 1.0), 1)])})
    with pytest.raises(ViewInvariant, match="another layout"):
        sums(FACTS, []).load(live.state()["kept"])
    with pytest.raises(ViewInvariant, match="cannot be read"):
        circuits.arrange().operators["kept"].load(StateManifest((), b"\xc1"))
    with pytest.raises(ViewInvariant, match="version 9"):
        circuits.arrange().operators["kept"].load(StateManifest((), b"\x92\x09\xc4\x00"))


MOVES = [(Phase.SILENT, Phase.DUMPING), (Phase.SILENT, Phase.FOLLOWING), (Phase.DUMPING, Phase.FOLLOWING)]


@pytest.mark.parametrize("start", Phase)
@pytest.mark.parametrize("end", Phase)
def test_a_sink_goes_only_forward(start: Phase, end: Phase) -> None:
    sink = Sink("out", FACTS, (0,))
    if start is not Phase.SILENT:
        sink.move(start)
    if (start, end) in MOVES:
        sink.move(end)
        assert sink.phase is end
    else:
        with pytest.raises(ViewInvariant, match="cannot go from"):
            sink.move(end)


def test_a_sink_says_nothing_in_silence_and_dumps_only_in_a_dump() -> None:
    sink = Sink("out", FACTS, (0,))
    plain = of([((1, "a", 1.0), 1), ((2, "b", None), -1)])
    delta, _ = sink.step((plain,))
    assert sink.emit(delta) is None
    with pytest.raises(ViewInvariant, match="dumps nothing while it is silent"):
        sink.dump(delta)
    sink.move(Phase.DUMPING)
    with pytest.raises(ViewInvariant, match="follows nothing while it is dumping"):
        sink.emit(delta)
    assert sink.dump(sink.step((of([((1, "a", 1.0), 1)]),))[0]).rows.rows() == [(1, "a", 1.0)]
    sink.move(Phase.FOLLOWING)
    said = sink.emit(delta)
    assert said is not None
    assert said.rows.rows() == [(1, "a", 1.0)]
    assert said.removed.rows() == [(2,)]
    with pytest.raises(ViewInvariant, match="two rows of one key"):
        sink.emit(sink.step((of([((1, "a", 1.0), 1), ((1, "b", 1.0), 1)]),))[0])
    with pytest.raises(ViewInvariant, match="and nothing else"):
        sink.emit(plain)
    with pytest.raises(ViewInvariant, match="cannot load"):
        sink.load(Sink("other", FACTS, (0,)).state())


@pytest.mark.parametrize("collide", [False, True])
def test_a_sink_tells_keys_of_one_hash_apart(collide: bool) -> None:
    """Their rows lie between each other in a run, whose order is that of rows' hashes."""
    sink = Sink("out", FACTS, (0,))
    sink.move(Phase.FOLLOWING)
    with four_bit_hashes(collide):
        changed = [((number, "old", 1.0), -1) for number in range(60)]
        changed += [((number, "new", 2.0), 1) for number in range(0, 60, 2)]
        said = sink.emit(sink.step((of(changed),))[0])
    assert said is not None
    assert sorted(said.rows.rows()) == [(number, "new", 2.0) for number in range(0, 60, 2)]
    assert sorted(said.removed.rows()) == [(number,) for number in range(1, 60, 2)]
