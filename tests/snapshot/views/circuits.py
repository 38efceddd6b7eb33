"""Circuits of each operator, as tests step them, fork them and look at what they keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import polars as pl

from strandline.snapshot.views.arrange import Arrange
from strandline.snapshot.views.circuit import Circuit, Node
from strandline.snapshot.views.constant import Constant
from strandline.snapshot.views.join import Join
from strandline.snapshot.views.leading import Order
from strandline.snapshot.views.linear_aggregate import LinearAggregate
from strandline.snapshot.views.map_operator import Map
from strandline.snapshot.views.negate import Negate
from strandline.snapshot.views.sink import Changes, Phase, Sink
from strandline.snapshot.views.top_k import TopK
from strandline.snapshot.views.union import Union
from strandline.snapshot.views.upsert import Upsert
from strandline.snapshot.views.zset import Positions, Schema, ZSet, zset
from strandline.statemachine.views.aggregates import Aggregate, AggregateFunction
from strandline.statemachine.views.expressions import Call, Column, Function, Literal
from strandline.statemachine.views.types import Type
from tests.snapshot.views.deltas import FACTS, Row, plain

COUNT, SUM, AVG, MIN, MAX = AggregateFunction
TEXT: Final = pl.String()
WHOLE: Final = pl.Int64()
DOUBLE: Final = pl.Float64()
AGGREGATES: Final = (
    Aggregate(COUNT),
    Aggregate(COUNT, 2, Type.DOUBLE),
    Aggregate(SUM, 0, Type.BIGINT),
    Aggregate(AVG, 0, Type.BIGINT),
    Aggregate(SUM, 2, Type.DOUBLE),
    Aggregate(AVG, 2, Type.DOUBLE),
)
AGGREGATED: Final[Schema] = (TEXT, WHOLE, WHOLE, WHOLE, DOUBLE, DOUBLE, DOUBLE)
VALUES: Final = (
    Aggregate(MIN, 1, Type.STRING),
    Aggregate(MAX, 1, Type.STRING),
    Aggregate(MIN, 2, Type.DOUBLE),
    Aggregate(MAX, 2, Type.DOUBLE),
    Aggregate(COUNT, 1, Type.STRING, distinct=True),
    Aggregate(SUM, 2, Type.DOUBLE, distinct=True),
    Aggregate(SUM, 2, Type.DOUBLE),
)
VALUED: Final[Schema] = (WHOLE, TEXT, TEXT, DOUBLE, DOUBLE, WHOLE, DOUBLE, DOUBLE)
POSITIVE: Final = Call(Function.LESS, (Literal(0, Type.BIGINT), Column(0, Type.BIGINT)), Type.BOOLEAN)
CONSTANT: Final[Row] = (3, "one", 0.5)
BACK: Final = (Column(1, Type.BIGINT), Column(0, Type.STRING), Column(2, Type.DOUBLE))
SWAPPED: Final = (Column(1, Type.STRING), Column(0, Type.BIGINT), Column(2, Type.DOUBLE))


def whole(schema: Schema) -> Positions:
    return tuple(range(len(schema)))


def arrange() -> Circuit:
    return Circuit({"facts": FACTS}, [Node(Arrange("kept", FACTS, (0,)), ("facts",))])


def upsert() -> Circuit:
    nodes = [
        Node(Upsert("table", FACTS, (0,)), ("log",)),
        Node(Sink("out", FACTS, (0,)), ("table",)),
    ]
    return Circuit({"log": FACTS}, nodes)


def aggregate() -> Circuit:
    nodes = [
        Node(LinearAggregate("groups", FACTS, (1,), AGGREGATES), ("facts",)),
        Node(Sink("out", AGGREGATED, (0,)), ("groups",)),
    ]
    return Circuit({"facts": FACTS}, nodes)


def values() -> Circuit:
    nodes = [
        Node(LinearAggregate("groups", FACTS, (0,), VALUES), ("facts",)),
        Node(Sink("out", VALUED, (0,)), ("groups",)),
    ]
    return Circuit({"facts": FACTS}, nodes)


def constant() -> Circuit:
    """A row of its own, with the facts."""
    nodes = [
        Node(Constant("one", zset(FACTS, [CONSTANT]).rows), ()),
        Node(Union("rows"), ("one", "facts")),
        Node(LinearAggregate("counts", FACTS, (0,), (Aggregate(COUNT),)), ("rows",)),
        Node(Sink("out", (WHOLE, WHOLE), (0,)), ("counts",)),
    ]
    return Circuit({"facts": FACTS}, nodes)


def first() -> Circuit:
    """The two rows of each number that are highest by DOUBLE, with their places."""
    ranked = (*FACTS, pl.Int32())
    nodes = [
        Node(TopK("first", FACTS, (0,), (Order(2, descending=True), Order(1)), 2, ranked=True), ("facts",)),
        Node(Sink("out", ranked, (0, 3)), ("first",)),
    ]
    return Circuit({"facts": FACTS}, nodes)


def difference() -> Circuit:
    """The rows that are not above zero."""
    nodes = [
        Node(Map("above", POSITIVE, SWAPPED), ("facts",)),
        Node(Map("back", None, BACK), ("above",)),
        Node(Negate("away"), ("back",)),
        Node(Union("rest"), ("facts", "away")),
        Node(Arrange("kept", FACTS, (1,)), ("rest",)),
    ]
    return Circuit({"facts": FACTS}, nodes)


def distinct() -> Circuit:
    nodes = [
        Node(LinearAggregate("rows", FACTS, (0, 1, 2), ()), ("facts",)),
        Node(Sink("out", FACTS, (0, 1, 2)), ("rows",)),
    ]
    return Circuit({"facts": FACTS}, nodes)


def join() -> Circuit:
    """A table of keys, joined with facts, and counted by the table's text."""
    nodes = [
        Node(Upsert("table", FACTS, (0,)), ("log",)),
        Node(Arrange("left", FACTS, (0,)), ("facts",)),
        Node(Arrange("right", FACTS, (0,)), ("table",)),
        Node(Join("pairs", FACTS, FACTS), ("left", "right")),
        Node(LinearAggregate("counts", (*FACTS, *FACTS), (4,), (Aggregate(COUNT),)), ("pairs",)),
        Node(Sink("out", (TEXT, WHOLE), (0,)), ("counts",)),
    ]
    return Circuit({"facts": FACTS, "log": FACTS}, nodes)


def mapped() -> Circuit:
    """The rows above zero twice, once with columns in another order and back."""
    nodes = [
        Node(Map("above", POSITIVE, SWAPPED), ("facts",)),
        Node(Map("back", None, BACK), ("above",)),
        Node(Union("twice"), ("back", "facts")),
        Node(Arrange("kept", FACTS, (1,)), ("twice",)),
    ]
    return Circuit({"facts": FACTS}, nodes)


REGISTRY: Final[dict[str, Callable[[], Circuit]]] = {
    each.__name__: each
    for each in (arrange, upsert, aggregate, values, constant, first, difference, distinct, join, mapped)
}
"""Circuits in which each class of operators has a place."""


class Topic:
    """What a sink has written: the last row of each key."""

    def __init__(self, key: Positions) -> None:
        self.rows: dict[Row, Row] = {}
        self._key = key

    def take(self, changes: Changes) -> None:
        for gone in changes.removed.rows():
            del self.rows[tuple(map(plain, gone[: len(self._key)]))]
        for row in changes.rows.rows():
            exact = tuple(map(plain, row))
            self.rows[tuple(exact[position] for position in self._key)] = exact


def key_of(circuit: Circuit) -> Positions:
    operator = circuit.operators.get("out")
    return operator.state_plan().keys[0] if operator else ()  # type: ignore[index]


def follow(circuit: Circuit) -> None:
    for operator in circuit.operators.values():
        if isinstance(operator, Sink):
            operator.move(Phase.FOLLOWING)


def played(circuit: Circuit, deltas: Sequence[dict[str, ZSet]]) -> Topic:
    """Step a circuit; what its sink has written at the end."""
    follow(circuit)
    return played_on(circuit, deltas, Topic(key_of(circuit)))


def played_on(circuit: Circuit, deltas: Sequence[dict[str, ZSet]], topic: Topic) -> Topic:
    for delta in deltas:
        for changes in circuit.step(delta).values():
            topic.take(changes)
    return topic


def fork(circuit: Circuit, build: Callable[[], Circuit]) -> Circuit:
    """Make another circuit with the same state."""
    made = build()
    made.load(circuit.state())
    return made
