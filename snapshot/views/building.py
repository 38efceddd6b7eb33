"""Circuits of programs: an operator for each one of the plans, shared ones once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

from strandline.snapshot.views.arrange import Arrange as ArrangeOperator
from strandline.snapshot.views.circuit import Circuit, Node
from strandline.snapshot.views.constant import Constant as ConstantOperator
from strandline.snapshot.views.evaluate import DTYPES, literal
from strandline.snapshot.views.join import Join as JoinOperator
from strandline.snapshot.views.leading import Order
from strandline.snapshot.views.linear_aggregate import LinearAggregate as AggregateOperator
from strandline.snapshot.views.map_operator import Map as MapOperator
from strandline.snapshot.views.negate import Negate as NegateOperator
from strandline.snapshot.views.operator import Operator
from strandline.snapshot.views.run import Run
from strandline.snapshot.views.sink import Sink as SinkOperator
from strandline.snapshot.views.spine import as_it_is
from strandline.snapshot.views.top_k import TopK as TopKOperator
from strandline.snapshot.views.union import Union as UnionOperator
from strandline.snapshot.views.upsert import Upsert as UpsertOperator
from strandline.snapshot.views.zset import Schema, frame
from strandline.statemachine.views.identity import digest
from strandline.statemachine.views.plan import (
    Arrange,
    Constant,
    Join,
    LinearAggregate,
    Map,
    Negate,
    Plan,
    Sink,
    Source,
    TopK,
    Union,
    Upsert,
)
from strandline.statemachine.views.program import Program


def circuit_of(
    program: Program, merging: Executor | None = None, keep: Callable[[Run], Run] = as_it_is
) -> Circuit:
    """Build the circuit of a program. Sources and operators go by their digests."""
    plans = program.operators()
    sources = {name: schema(plan) for name, plan in plans.items() if isinstance(plan, Source)}
    nodes = [
        Node(_operator(name, plan), tuple(digest(each) for each in plan.inputs))
        for name, plan in plans.items()
        if not isinstance(plan, Source)
    ]
    circuit = Circuit(sources, nodes, merging, keep)
    if any(isinstance(plan, Constant) for plan in plans.values()):
        # What depends on no record is there at the cut before all records.
        circuit.step({})
    return circuit


def schema(plan: Plan) -> Schema:
    """Give the types of a plan's columns as polars has them."""
    return tuple(DTYPES[kind] for kind in plan.types)


def _operator(name: str, plan: Plan) -> Operator:
    match plan:
        case Constant(values):
            return ConstantOperator(name, frame([literal(value, 1) for value in values]))
        case Upsert(_, key):
            return UpsertOperator(name, schema(plan), key)
        case Map(_, condition, columns):
            return MapOperator(name, condition, columns)
        case Arrange(_, key):
            return ArrangeOperator(name, schema(plan), key)
        case Join(left, right):
            return JoinOperator(name, schema(left), schema(right))
        case LinearAggregate(below, keys, aggregates):
            return AggregateOperator(name, schema(below), keys, aggregates)
        case TopK(below, keys, orders, limit, ranked):
            ordered = [Order(*each) for each in orders]
            return TopKOperator(name, schema(below), keys, ordered, limit, ranked=ranked)
        case Negate():
            return NegateOperator(name)
        case Union():
            return UnionOperator(name)
        case Sink(_, _, key, _):
            return SinkOperator(name, schema(plan), key)
        case Source():
            raise TypeError("a source is no operator")
