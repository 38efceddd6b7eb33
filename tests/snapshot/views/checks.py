"""What holds of every circuit: its content, output and digests are those of the rows, and of no step."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from strandline.snapshot.views.circuit import Circuit
from strandline.snapshot.views.zset import ZSet
from tests.snapshot.views import circuits
from tests.snapshot.views.circuits import REGISTRY, Topic, fork, key_of, played, played_on
from tests.snapshot.views.deltas import (
    Change,
    Row,
    counted,
    exact_average,
    exact_sum,
    last_of_log,
    plain,
    rows_there,
    steps,
)

Check = Callable[[str, list[Change], list[Change], list[int], list[int]], None]
"""A check of one circuit: its name, changes of facts and of the log, and where each is cut."""


def inputs(circuit: Circuit, facts: Sequence[ZSet], log: Sequence[ZSet]) -> list[dict[str, ZSet]]:
    """One step for each pair of deltas, of the sources that the circuit has."""
    longest = max(len(facts), len(log))
    steps_ = []
    for at in range(longest):
        named = {"facts": facts[at : at + 1], "log": log[at : at + 1]}
        steps_.append({name: delta[0] for name, delta in named.items() if delta and name in circuit.sources})
    return steps_


def expected(name: str, facts: list[Change], log: list[Change]) -> Counter[Row]:
    """The content of the last operator, worked out from all rows at once."""
    there = rows_there(facts)
    match name:
        case "arrange":
            return there
        case "mapped":
            return there + Counter({row: n for row, n in there.items() if row[0] is not None and row[0] > 0})
        case "upsert":
            return last_of_log(log)
        case "distinct":
            return Counter(dict.fromkeys(there, 1))
        case "aggregate":
            return Counter(aggregated(there))
        case "values":
            return Counter(valued(there))
        case "constant":
            numbers = Counter({circuits.CONSTANT[0]: 1})
            for row, times in there.items():
                numbers[row[0]] += times
            return Counter([*numbers.items()])
        case "first":
            return first_two(there)
        case "difference":
            return Counter({row: times for row, times in there.items() if row[0] is None or row[0] <= 0})
        case "join":
            pairs: Counter[Row] = Counter()
            for table_row in last_of_log(log):
                for row, times in there.items():
                    if row[0] == table_row[0] is not None:
                        pairs[(table_row[1],)] += times
            return Counter([(*text, times) for text, times in pairs.items()])
    raise KeyError(name)


def aggregated(there: Counter[Row]) -> list[Row]:
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row, times in there.items():
        groups[row[1]] += [row] * times
    result = []
    for text, rows in groups.items():
        wholes = [row[0] for row in rows if row[0] is not None]
        doubles = [math.nan if row[2] == "NaN" else row[2] for row in rows if row[2] is not None]
        result.append((
            text, len(rows), len(doubles), sum(wholes) if wholes else None,
            sum(wholes) / len(wholes) if wholes else None,
            plain(exact_sum(doubles)) if doubles else None,
            plain(exact_average(doubles)) if doubles else None,
        ))  # fmt: skip
    return result


def valued(there: Counter[Row]) -> list[Row]:
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row, times in there.items():
        groups[row[0]] += [row] * times
    result = []
    for number, rows in groups.items():
        texts = [row[1] for row in rows if row[1] is not None]
        doubles = [math.nan if row[2] == "NaN" else row[2] for row in rows if row[2] is not None]
        # NaN is above all other numbers.
        lowest, highest = (
            plain(ends(doubles, key=lambda one: (math.isnan(one), one))) if doubles else None
            for ends in (min, max)
        )
        distinct = {plain(one): one for one in doubles}.values()
        result.append((
            number, min(texts) if texts else None, max(texts) if texts else None, lowest, highest,
            len({*texts}), plain(exact_sum([*distinct])) if doubles else None,
            plain(exact_sum(doubles)) if doubles else None,
        ))  # fmt: skip
    return result


def first_two(there: Counter[Row]) -> Counter[Row]:
    """The places of rows that are ordered as NaN highest, null lowest, then by text and by all columns."""
    result: Counter[Row] = Counter()
    for number in {row[0] for row in there}:
        own = [row for row in there.elements() if row[0] == number]
        own.sort(key=lambda row: (row[1] is not None, row[1] or ""))
        own.sort(key=lambda row: _rank(row[2]), reverse=True)
        result.update((*row, place) for place, row in enumerate(own[:2], 1))
    return result


def _rank(number: Any) -> tuple[int, float]:
    return (0, 0.0) if number is None else (2, 0.0) if number == "NaN" else (1, number)


def last(circuit: Circuit) -> str:
    return [*circuit.operators][-1]


def content(circuit: Circuit, name: str, parts: int = 1) -> Counter[Row]:
    whole: Counter[Row] = Counter()
    for part in circuit.contents(name, parts):
        whole.update(counted(part))
    return whole


def check_cuts(name: str, facts: list[Change], log: list[Change], cuts: list[int], other: list[int]) -> None:
    """Any steps give the same content, output and digests: those of all rows at once."""
    build = REGISTRY[name]
    one, two = build(), build()
    first = played(one, inputs(one, [*steps(facts, cuts)], [*steps(log, other)]))
    second = played(two, inputs(two, [*steps(facts, [])], [*steps(log, [])]))
    assert one.digests() == two.digests()
    assert first.rows == second.rows
    wanted = expected(name, facts, log)
    assert content(one, last(one)) == content(two, last(two), 3) == wanted
    if "out" in one.operators:
        assert Counter(first.rows.values()) == wanted


def check_fork(name: str, facts: list[Change], log: list[Change], cuts: list[int], other: list[int]) -> None:
    """A circuit that loads a state goes on as the one it was taken from, which it does not see."""
    build = REGISTRY[name]
    live = build()
    deltas = inputs(live, [*steps(facts, cuts)], [*steps(log, cuts)])
    at = len(other)
    topic = played(live, deltas[:at])
    kept = fork(live, build)
    before = kept.digests()
    assert before == live.digests()
    copy = Topic(key_of(live))
    copy.rows = dict(topic.rows)
    played_on(live, deltas[at:], topic)
    assert kept.digests() == before, "what the live circuit does is not seen in its fork"
    assert content(kept, last(kept)) == content_at(build, deltas[:at])
    circuits.follow(kept)
    played_on(kept, deltas[at:], copy)
    assert kept.digests() == live.digests()
    assert copy.rows == topic.rows
    assert content(kept, last(kept)) == content(live, last(live)) == expected(name, facts, log)


def content_at(build: Callable[[], Circuit], deltas: list[dict[str, ZSet]]) -> Counter[Row]:
    fresh = build()
    for delta in deltas:
        fresh.step(delta)
    return content(fresh, last(fresh))
