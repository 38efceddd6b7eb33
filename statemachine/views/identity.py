"""Identity of operators: two that keep the same state for the same records have one digest.

Columns are positions, so aliases do not count, and operands of commutative functions are sorted. The names of
a view's columns count in its sink, whose values have them, and in no operator below.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Final

from strandline.statemachine.views.expressions import canonical_text
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

PLAN_VERSION: Final = 1
SEMANTICS: Final[dict[type[Plan], int]] = {
    Source: 1, Constant: 1, Upsert: 1, Map: 1, Arrange: 1, Join: 1, LinearAggregate: 1, TopK: 1,
    Negate: 1, Union: 1, Sink: 1,
}  # fmt: skip
"""By operator, the version of what it does: it grows when the same plan comes to keep another state."""


@cache
def digest(plan: Plan) -> str:
    """Give an operator's digest, with all that it depends on: 64 hexadecimal digits."""
    children = [digest(each) for each in plan.inputs]
    if isinstance(plan, Union):
        children.sort()
    parts = [
        str(PLAN_VERSION),
        type(plan).__name__,
        str(SEMANTICS[type(plan)]),
        parameters(plan),
        " ".join(kind.value for kind in plan.types),
        *children,
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def parameters(plan: Plan) -> str:
    """Write what an operator does, in one form and on one line."""
    match plan:
        case Source(topic, mode, options, columns):
            return repr((topic, mode, options, tuple((name, kind.value) for name, kind in columns)))
        case Constant(values):
            return " ".join(map(canonical_text, values))
        case Map(_, condition, columns):
            shown = "" if condition is None else canonical_text(condition)
            return f"where {shown} select {' '.join(map(canonical_text, columns))}"
        case Upsert(_, key) | Arrange(_, key):
            return repr(key)
        case Join(left, right):
            return f"{left.key} = {right.key}"
        case LinearAggregate(_, keys, aggregates):
            shown = " ".join(
                f"{each.function.value}({'distinct ' if each.distinct else ''}{each.column})"
                for each in aggregates
            )
            return f"by {keys}: {shown}"
        case TopK(_, keys, orders, limit, ranked):
            return repr((keys, orders, limit, ranked))
        case Union() | Negate():
            return ""
        case Sink(_, names, key, partitions):
            return repr((names, key, partitions))
