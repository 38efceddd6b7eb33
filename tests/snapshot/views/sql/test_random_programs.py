"""Programs and histories drawn at random: each view's topic is DuckDB's answer after every step.

`python -m tests.snapshot.views.sql.test_random_programs FIRST SECONDS` plays one seed after the other.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from strandline.snapshot.views import json_rows, spine
from strandline.snapshot.views.building import circuit_of
from strandline.snapshot.views.circuit import Circuit
from strandline.snapshot.views.errors import ViewError
from strandline.snapshot.views.json_records import Record, batch_of
from strandline.snapshot.views.replay import readers
from strandline.snapshot.views.sink import Changes, Phase
from strandline.snapshot.views.sink import Sink as SinkOperator
from strandline.snapshot.views.sql.programs import program_of
from strandline.statemachine.views.identity import digest
from strandline.statemachine.views.program import Program
from strandline.statemachine.views.refusals import Refused
from strandline.statemachine.views.types import Type as T
from tests.snapshot.views.sql.random_programs import TABLES, TEXT, Draw, View, for_duckdb

Records = dict[str, list[tuple[Any, Any]]]
"""Keys and values by topic, as JSON has them; no value deletes."""
_ARROW: Final = {
    T.STRING: pa.string(), T.BIGINT: pa.int64(), T.INT: pa.int32(), T.DOUBLE: pa.float64(),
    T.BOOLEAN: pa.bool_(), T.TIMESTAMP: pa.timestamp("us"),
}  # fmt: skip
_ODD: Final = (0.1, 0.2, 1e20, -1e20, -0.0, "NaN", "Infinity")
_TIMES: Final = (
    "1969-12-31T23:59:59.500000Z", "2026-02-28T12:30:00Z", "2026-03-01T00:00:00Z", "1960-02-29T01:02:03Z",
    "0001-01-05T00:00:00Z",
)  # fmt: skip


class History:
    """Tables that grow and change."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._rows: dict[str, dict[Any, dict[str, Any]]] = {name: {} for name in TABLES}

    def _value(self, kind: T) -> Any:
        pick = self._chance.choice
        if self._chance.random() < 0.2:
            return None
        match kind:
            case T.STRING:
                return pick(["a", "b", "c", "ab", ""])
            case T.DOUBLE:
                return pick(_ODD) if self._chance.random() < 0.15 else pick([0.0, 1.5, -2.0, 2.5, 1.0])
            case T.BOOLEAN:
                return pick([True, False])
            case T.TIMESTAMP:
                return pick(_TIMES)
            case _:
                return self._chance.randrange(-3, 5)

    def step(self) -> Records:
        """Change some of the tables."""
        records: Records = {}
        for name, table in TABLES.items():
            if self._chance.random() < 0.35:
                continue
            rows, records[name] = self._rows[name], []
            for _ in range(self._chance.choice([1, 2, 5, 12])):
                columns = [column for column in table.columns if not column.startswith("_")]
                value = {column: self._value(table.columns[column]) for column in columns}
                if name in ("t", "u"):
                    records[name].append((None, value))
                    rows[len(rows)] = {**value, "_partition": 0, "_offset": len(rows)}
                    continue
                key = [self._chance.choice("abcd"), self._chance.randrange(-1, 3)][: len(table.key or ())]
                gone = self._chance.random() < 0.35
                records[name].append((key, None if gone else value))
                rows.pop(tuple(key), None)
                if not gone:
                    rows[tuple(key)] = {**value, **dict(zip(table.key or (), key, strict=True))}
        return records

    def tell(self, database: duckdb.DuckDBPyConnection) -> None:
        """Give the tables as they are now to another engine."""
        for name, table in TABLES.items():
            arrays = [
                pa.array([_plain(row[column], kind) for row in self._rows[name].values()], _ARROW[kind])
                for column, kind in table.columns.items()
            ]
            database.register(name, pa.Table.from_arrays(arrays, names=[*table.columns]))


def _plain(value: Any, kind: T) -> Any:
    if kind is T.TIMESTAMP and value is not None:
        return dt.datetime.fromisoformat(value).replace(tzinfo=None)
    return float(value) if kind is T.DOUBLE and value is not None else value


class Played:
    """A program with its topics, which have the last value of each key."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.circuit = circuit_of(program)
        self._readers = readers(program.operators())
        self.sinks = {view.name: view.sink for view in program.views if view.sink is not None}
        self.topics: dict[str, dict[bytes, bytes]] = {name: {} for name in self.sinks}
        self._next = Counter[str]()
        for sink in _sinks(self.circuit):
            # As a version that was filled: what is there before any record is written as content.
            content = _parts(self.circuit, sink.name, 1)
            if content is not None:
                sink.move(Phase.DUMPING)
                self._take({sink.name: sink.dump(content[0])})
            sink.move(Phase.FOLLOWING)

    def step(self, records: Records) -> None:
        """Take records in; tombstones are for keys that are there alone."""
        batches = {}
        for topic, rows in records.items():
            first = self._next[topic]
            self._next[topic] += len(rows)
            batches[topic] = batch_of(
                Record(0, first + at, 0, *(None if one is None else json.dumps(one).encode() for one in row))
                for at, row in enumerate(rows)
            )
        deltas = {
            name: reader.rows(batches[source.topic])
            for name, (source, reader) in self._readers.items()
            if source.topic in batches
        }
        self._take(self.circuit.step(deltas))

    def restart(self) -> None:
        """Go on with another circuit that has the state of this one."""
        made = circuit_of(self.program)
        made.load(self.circuit.state())
        for sink in _sinks(made):
            sink.move(Phase.FOLLOWING)
        self.circuit = made

    def _take(self, said: Mapping[str, Changes]) -> None:
        for name, sink in self.sinks.items():
            changes = said.get(digest(sink))
            if changes is None:
                continue
            keys, values = json_rows.columns(sink, changes)
            for key, value in zip(keys.to_pylist(), values.to_pylist(), strict=True):
                if value is None:
                    assert self.topics[name].pop(key, None) is not None, (name, key)
                else:
                    self.topics[name][key] = value


def _sinks(circuit: Circuit) -> Iterator[SinkOperator]:
    return (each for each in circuit.operators.values() if isinstance(each, SinkOperator))


def _parts(circuit: Circuit, sink: str, parts: int) -> list[Any] | None:
    """The content of a view; None where no operator keeps it."""
    try:
        return [*circuit.contents(sink, parts)]
    except ViewError as error:
        if "kept by no operator" not in str(error):
            raise
        return None


def _comparable(value: Any) -> Any:
    match value:
        case bool() | None:
            return value
        case float() if math.isnan(value) or math.isinf(value):
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
        case int() | float():
            return float(f"{value:.9g}") + 0.0
        case dt.datetime():
            return f"{value.isoformat()}Z"
        case _:
            return value


def _rows(rows: Sequence[Sequence[Any]]) -> Counter[str]:
    return Counter(repr([*map(_comparable, row)]) for row in rows)


def understood(views: Sequence[View]) -> list[View]:
    """Give those of a program's views that are not refused."""
    found: list[View] = []
    for view in views:
        try:
            program_of(TEXT + "".join(each.statement for each in [*found, view]))
        except Refused:
            continue
        found.append(view)
    return found


def play(seed: int, database: duckdb.DuckDBPyConnection) -> bool:
    """Play a program and a history; whether there was anything to compare."""
    chance = random.Random(seed)
    views = understood(Draw(chance).views())
    if all(view.local for view in views):
        return False
    program = program_of(TEXT + "".join(view.statement for view in views))
    played, every, history = Played(program), Records(), History(chance)
    beside = ", ".join(f"{view.name} AS ({for_duckdb(view.query.text)})" for view in views)
    for _ in range(chance.choice([2, 4, 6])):
        records = history.step()
        history.tell(database)
        played.step(records)
        for topic, rows in records.items():
            every[topic] = [*every.get(topic, []), *rows]
        if chance.random() < 0.3:
            played.restart()
        for name, stored in played.topics.items():
            wanted = _rows(database.execute(f"WITH {beside} SELECT * FROM {name}").fetchall())
            assert _rows([[*json.loads(value).values()] for value in stored.values()]) == wanted, name
            parts = _parts(played.circuit, digest(played.sinks[name]), chance.choice([1, 3, 7]))
            if parts is not None:
                assert sum(map(len, parts)) == wanted.total(), name
                assert all(weight == 1 for part in parts for weight in part.weights.tolist()), name
    if chance.random() < 0.4:
        at_once = Played(program)
        at_once.step(every)
        assert at_once.circuit.digests() == played.circuit.digests()
        assert at_once.topics == played.topics
    return True


@pytest.mark.parametrize(("first", "merging"), [(0, False), (10, True), (110, False), (255, True)])
def test_views_are_what_duckdb_says_of_programs_drawn_at_random(
    first: int, merging: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A condition without a column below a FULL JOIN was found by 111, a key of a row without one by 256."""
    if merging:
        _merge_much(lambda name, value: monkeypatch.setattr(spine, name, value))
    with duckdb.connect(config={"threads": "1"}) as database:
        assert sum(play(seed, database) for seed in range(first, first + 3)) > 1


def _merge_much(put: Callable[[str, int], None]) -> None:
    """Have levels of few rows be merged by steps, in pieces."""
    for name, rows in (("INLINE_ROWS", 6), ("PIECE_ROWS", 4), ("LEAST_PIECE_ROWS", 3)):
        put(name, rows)


def main(first: int, seconds: float) -> None:
    """Play seeds for a time, with small merges in every second run of this."""
    if first % 2:
        _merge_much(lambda name, value: setattr(spine, name, value))
    end, seed, compared = time.monotonic() + seconds, first, 0
    with duckdb.connect(config={"threads": "1"}) as database:
        while time.monotonic() < end:
            try:
                compared += play(seed, database)
            except BaseException:
                print(
                    f"seed {seed}:", *(view.statement for view in Draw(random.Random(seed)).views()), sep="\n"
                )
                raise
            seed += 1
    print(f"{seed - first} seeds from {first} on, {compared} compared")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
