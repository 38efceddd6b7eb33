"""Many records at once and one by one are the same: as rows, as texts, and in what is refused."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.snapshot.views import json_columns
from strandline.snapshot.views.circuit import Circuit, Node
from strandline.snapshot.views.evaluate import DTYPES
from strandline.snapshot.views.json_records import BadRecord, RecordReader, batch_of
from strandline.snapshot.views.json_rows import _plain
from strandline.snapshot.views.sink import Changes
from strandline.snapshot.views.sink import Sink as SinkOperator
from strandline.snapshot.views.zset import chosen, zset
from strandline.statemachine.views.plan import Sink
from strandline.statemachine.views.types import Type
from tests.snapshot.views.circuits import follow
from tests.snapshot.views.json_values import COLUMNS, VALUES, record, records, source

PLAIN: Final = (
    ("a", Type.BIGINT),
    ("b", Type.INT),
    ("c", Type.DOUBLE),
    ("d", Type.STRING),
    ("e", Type.BOOLEAN),
)
ODD: Final = [
    *(
        b'{"a":%b}' % one
        for one in (
            b"1",
            b"1.0",
            b"1e2",
            b"-0",
            b"01",
            b"+1",
            b"true",
            b'"1"',
            b"null",
            b"{}",
            b"NaN",
            b"1,",
        )
    ),
    *(b'{"a":%d}' % one for one in (2**63, 2**63 - 1, -(2**63), -(2**63) - 1)),
    *(b'{"b":%d}' % one for one in (2**31, 2**31 - 1, -(2**31))),
    *(
        b'{"c":%b}' % one
        for one in (
            b"0.1",
            b"-0.0",
            b"1e999",
            b"-1e999",
            b"1e-999",
            b"9" * 310,
            b"9" * 300,
            b"1.",
            b".5",
            b"1E+5",
            b"NaN",
            b'"NaN"',
            b'"1.5"',
            b"Infinity",
            b"2.2250738585072011e-308",
            b"179769313486231580793728971405301e276",
        )
    ),
    *(
        b'{"d":"%b"}' % one
        for one in (
            b"x",
            b"\xff",
            b"\\ud800",
            b"\\ud83d\\ude00",
            b"a\nb",
            b"a\tb",
            b"a\\nb",
            b"\\u0000",
            b"\\x",
            b"\x7f",
            b"\xe2\x80\xa8",
            b"}\n{",
        )
    ),
    *(
        b"{%b}" % one
        for one in (
            b"",
            b'"x":NaN',
            b'"x":-Infinity',
            b'"x":"NaN"',
            b'"x":01',
            b'"x":"\xff"',
            b'"x":"\\ud800"',
            b'"a":1,"a":2',
            b'"x":1,"x":2',
            b'"\\u0061":5',
            b'"a":1,',
            b'"a":1/**/',
            b"'a':1",
            b"a:1",
            b'"a":1}{"a":2',
            b'"a":1}\n{"a":2',
            b' "a" : 1\n',
            b'\x0c"a":1',
            b'"":1',
            b'"e":true',
            b'"e":1',
            b'"d":1',
            b'"d":[1]',
            b'"x":[1,{"a":2}]',
            b'"x":' + b"9" * 4290,
            b'"x":' + b"9" * 4310,
            b'"x":' + b"[" * 199 + b"]" * 199,
            b'"x":' + b"[" * 200 + b"]" * 200,
        )
    ),
    b"",
    b" {}",
    b"{} ",
    b"[]",
    b"1",
    b"null",
    b"\xef\xbb\xbf{}",
    b"{",
    b"}",
]
GOOD: Final = b'{"a":7,"b":-7,"c":0.5,"d":"text","e":false}'


def read(reader: RecordReader, values: list[bytes]) -> Any:
    try:
        found = reader.rows(batch_of([record(value, offset=at) for at, value in enumerate(values)]))
    except BadRecord as bad:
        return str(bad)
    return found.rows.rows(), found.weights.tolist(), reader.skipped


@pytest.mark.parametrize("skip", [False, True])
def test_records_are_the_same_rows_by_the_short_way_and_one_by_one(
    monkeypatch: pytest.MonkeyPatch, skip: bool
) -> None:
    ways = []
    for short in (True, False):
        with monkeypatch.context() as patched:
            if not short:
                patched.setattr(json_columns, "columns", lambda *_: None)
            beside = [[one, GOOD] for one in ODD] + [[GOOD, one, other] for one, other in pairwise(ODD)]
            ways.append([repr(read(RecordReader(source(*PLAIN, skip=skip), None), each)) for each in beside])
    assert ways[0] == ways[1]


def test_plain_records_go_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordReader, "_row", None)
    table = source(*PLAIN, ("_offset", Type.BIGINT))
    rows, weights, _ = read(RecordReader(table, None), [GOOD, b"{}"])
    assert rows == [(7, -7, 0.5, "text", False, 0), (None, None, None, None, None, 1)]
    assert weights == [1, 1]
    keyed = RecordReader(source(("k", Type.STRING), *PLAIN, mode="upsert"), (0,))
    found = keyed.rows(batch_of([record(GOOD, b"one"), record(None, b'["two"]')]))
    assert found.rows.rows() == [("one", 7, -7, 0.5, "text", False), ("two", None, None, None, None, None)]
    assert found.weights.tolist() == [1, -1]


TEXTS: Final = st.text() | st.sampled_from(
    ["", "a", '"', "\\", "\x00", "\x1f", "\x7f", "\u2028", "é", "\U0001f600"]
)


@settings(deadline=None)
@given(st.lists(st.tuples(*(st.none() | VALUES[kind] for kind in Type), TEXTS), min_size=1, max_size=5))
def test_records_are_what_json_dumps_makes_of_a_row(rows: list[tuple[Any, ...]]) -> None:
    def dumped(value: Any) -> bytes:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()

    columns = (*COLUMNS, ('na"me', Type.STRING))
    table = source(*columns)
    sink = Sink(table, tuple(name for name, _ in columns), (len(columns) - 1, 0), 1)
    frame = zset(tuple(DTYPES[kind] for _, kind in columns), rows).rows
    keys = chosen(frame, sink.key)
    wanted = []
    for row in frame.iter_rows():
        values = [_plain(value) for value in row]
        wanted.append(
            (dumped([values[at] for at in sink.key]), dumped(dict(zip(sink.names, values, strict=True))))
        )
    assert records(sink, Changes(frame, keys)) == [*wanted, *((key, None) for key, _ in wanted)]


def test_a_row_without_a_key_is_removed_under_the_key_that_it_was_written_under() -> None:
    table = source(("n", Type.BIGINT))
    sink = Sink(table, ("n",), (), 1)
    circuit = Circuit(
        {"rows": (DTYPES[Type.BIGINT],)}, [Node(SinkOperator("out", (DTYPES[Type.BIGINT],), ()), ("rows",))]
    )
    follow(circuit)
    found = []
    for weight in (1, -1):
        (changes,) = circuit.step({"rows": zset((DTYPES[Type.BIGINT],), [(3,)], [weight])}).values()
        found += records(sink, changes)
    assert found == [(b"[]", b'{"n":3}'), (b"[]", None)]
