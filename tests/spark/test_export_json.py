"""`strandline export --value json`: fields as columns, what does not fit is kept, and nothing is lost."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable
from deltalake import Field as DeltaField
from deltalake.schema import PrimitiveType
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog

from strandline.snapshot.spark.export import parquet
from strandline.snapshot.spark.export.check import check
from strandline.snapshot.spark.export.documents import manifest_name, plan_name
from strandline.snapshot.spark.export.errors import ExportError
from strandline.snapshot.spark.export.given_columns import given_columns
from strandline.snapshot.spark.export.json_columns import JsonColumns, arrow_fields, grown
from strandline.snapshot.spark.export.planning import Limits
from strandline.snapshot.spark.export.target import open_target
from tests.cluster.command import strandline
from tests.kafka.wire.batches import Record, build
from tests.spark.exporting import Killed, Mortal, export, here
from tests.spark.stored_cluster import StoredCluster, Upload, build_cluster

TINY = Limits(file_bytes=1, round_files=2)
FORMATS = ("parquet", "delta", "iceberg")


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test loses power, and a busy disk takes a second for each sync."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


def batch_of(*values: bytes | None) -> Any:
    return pa.record_batch({"value": pa.array(values, pa.binary()), "offset": pa.array(range(len(values)))})


def columns_of(fields: dict[str, Any], *values: bytes | None) -> dict[str, list[Any]]:
    found = JsonColumns(fields).added(batch_of(*values)).to_pydict()
    del found["offset"]
    return dict(found)


def test_a_value_that_the_columns_say_wholly_is_left_out() -> None:
    values = [
        b'{"id": 1, "price": 2.5, "paid": true, "tags": ["a", null], "who": {"name": "A"}, "more": null}',
        b'{"id": 2, "price": 3}',
    ]
    fields = grown({}, values)
    assert columns_of(fields, *values) == {
        "value": [None, None],
        "id": [1, 2],
        "price": [2.5, 3.0],
        "paid": [True, None],
        "tags": [["a", None], None],
        "who": [{"name": "A"}, None],
    }


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"", {}),
        (b"no JSON", {}),
        (b"[1]", {}),
        (b"{}", {}),
        (b'{"id": null}', {}),
        (b'{"id": 1} {"id": 2}', {}),
        (b'{"id": NaN}', {}),
        (b'{"name": "\\ud800"}', {}),
        (b'{"name": "\xff"}', {}),
        (b'\xef\xbb\xbf{"id": 1}', {}),
        ('{"id": 1}'.encode("utf-16"), {}),
        (b'{"id": ' + b"9" * 5000 + b"}", {}),
        (b"[" * 100_000, {}),
        (b'{"id": 1, "new": 2}', {"id": 1}),
        (b'{"id": "1", "name": "b"}', {"name": "b"}),
        (b'{"id": 1.0}', {}),
        (b'{"id": true}', {}),
        (b'{"id": 9223372036854775808}', {}),
        (b'{"price": 1e999, "id": 3}', {"id": 3}),
        (b'{"price": 9007199254740993}', {}),
        (b'{"paid": 1}', {}),
        (b'{"tags": "a"}', {}),
        (b'{"counts": [1, "2"]}', {"counts": [1, None]}),
        (b'{"who": {"name": "A", "age": 3}}', {"who": {"name": "A"}}),
        (b'{"who": 5}', {}),
    ],
)
def test_a_value_that_they_do_not_say_wholly_is_kept_as_it_is(value: bytes, says: dict[str, Any]) -> None:
    fields: dict[str, Any] = {
        "id": "BIGINT",
        "price": "DOUBLE",
        "paid": "BOOLEAN",
        "name": "STRING",
        "tags": ["STRING"],
        "counts": ["BIGINT"],
        "who": {"name": "STRING"},
    }
    found = columns_of(fields, b'{"id": 7}', value, None)
    assert found["value"] == [None, value, None]
    assert found["id"][0] == 7
    assert {name: found[name][1] for name in fields if found[name][1] is not None} == says


def test_text_takes_what_has_no_common_type_as_json() -> None:
    found = columns_of(
        {"any": "STRING"}, b'{"any": [1, {"b": "\\u00e4"}]}', b'{"any": 1.5}', b'{"any": [1e999]}'
    )
    assert found == {"value": [None, None, b'{"any": [1e999]}'], "any": ['[1,{"b":"\xe4"}]', "1.5", None]}


def test_columns_are_added_and_never_change() -> None:
    first = grown({}, [b'{"id": 1, "gone": null, "none": [], "deep": {"x": null}}'])
    assert first == {"id": "BIGINT", "none": ["STRING"], "deep": "STRING"}
    assert grown(first, [b'{"id": 1.5, "gone": 2, "deep": {"x": 1}}']) == {**first, "gone": "BIGINT"}
    assert grown(first, [b"text"]) == first
    names = grown(
        {}, [b'{"Offset": 1, "value_offset": 2, "a.b": 3, "": 4, "a b": 5, "@t": 6, "s": {"a=b": 1}}']
    )
    assert [field.name for field in arrow_fields(names)] == ["value_Offset", "@t", "s"]
    assert names["s"] == "STRING"
    many = [json.dumps({f"f{number}": 1 for number in range(at, at + 150)}).encode() for at in (0, 150)]
    assert len(grown(grown({}, many[:1]), many[1:])) == 200


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
_values = st.dictionaries(st.sampled_from("abcd"), _json, max_size=4).map(
    lambda one: json.dumps(one).encode()
)


@given(sample=st.lists(_values, max_size=4), values=st.lists(_values | st.binary(), max_size=6))
def test_a_value_is_in_the_columns_or_kept(sample: list[bytes], values: list[bytes]) -> None:
    fields = grown({}, sample)
    found = columns_of(fields, *values)
    for number, value in enumerate(values):
        if found["value"][number] is not None:
            assert found["value"][number] == value
            continue
        said = {name: found[name][number] for name in fields}
        assert same(said, json.loads(value))


def same(said: Any, value: Any) -> bool:
    """Whether a column says a value, as JSON has it: null is the same as nothing, text may be JSON."""
    if isinstance(value, dict) and isinstance(said, dict):
        return all(same(said.get(name), value.get(name)) for name in {*said, *value})
    if isinstance(value, list) and isinstance(said, list):
        return len(said) == len(value) and all(map(same, said, value))
    if isinstance(said, str) and not isinstance(value, str):
        return bool(json.loads(said) == value)
    return bool(said == value) and isinstance(said, bool) == isinstance(value, bool)


def put(cluster: StoredCluster, *values: bytes, number: int = 0) -> None:
    """Write values to a partition of topic `events`, as one batch, and publish them."""
    records = tuple(Record(value) for value in values)
    cluster.upload(Upload(cluster.partitions["events", number], records, build(records), (-1, -1, -1)))
    cluster.checkpoint()


@pytest.fixture
def cluster(tmp_path: Path) -> StoredCluster:
    found = build_cluster(tmp_path / "objects", batches_a_round=1)
    found.create_topic("events", 2)
    return found


def rows(folder: Path, form: str, columns: str) -> list[Any]:
    """Some columns of topic `events`, as a reader of its table or files has them, by offset."""
    if form == "parquet":
        found = f"read_parquet('{folder}/topic=events/**/*.parquet', union_by_name = true)"
        return duckdb.execute(f'SELECT {columns} FROM {found} ORDER BY "offset"').fetchall()
    if form == "delta":
        table = DeltaTable(str(folder / "topic=events")).to_pyarrow_table()
    else:
        catalog = load_catalog("strandline", type="sql", uri=f"sqlite:///{folder}/_strandline/catalog.db")
        table = catalog.load_table(("strandline", "events")).scan().to_arrow()
    return duckdb.from_arrow(table).order('"offset"').project(columns).fetchall()


@pytest.mark.parametrize("by", ["none", "day"])
@pytest.mark.parametrize("form", FORMATS)
def test_fields_are_columns_and_later_ones_are_added(
    cluster: StoredCluster, tmp_path: Path, form: str, by: str
) -> None:
    folder = tmp_path / "lake"
    target = open_target(str(folder))
    bad = b'{"id": "three", "day": 3}'
    put(cluster, b'{"id": 1, "day": 5, "user": {"name": "A"}}', b'{"id": 2, "user": {"name": "B"}}')
    done = export(cluster, target, "events", by=by, format=form, value="json")
    assert (done.records, done.unfit) == (2, 0)
    put(cluster, b'{"id": 3, "extra": [1.5]}', bad, b"no JSON")
    done = export(cluster, target, "events")
    assert (done.records, done.unfit) == (3, 2)
    columns = 'id, value_day, "user".name, extra, value'
    assert rows(folder, form, columns) == [
        (1, 5, "A", None, None),
        (2, None, "B", None, None),
        (3, None, None, [1.5], None),
        (None, 3, None, None, bad),
        (None, None, None, None, b"no JSON"),
    ]
    found = check(target)
    assert (found.problems, found.unfinished, found.records) == ([], None, 5)


ODD = ["9E", "A/B c%d=1", "ä€", "a text of more than sixteen characters"]
"""Texts as folders have to have them: quoted."""
NO_FOLDERS = ["", "x" * 200, "__HIVE_DEFAULT_PARTITION__", "two\nlines"]


@pytest.mark.parametrize("form", FORMATS)
def test_a_target_is_partitioned_by_a_column_of_values(
    form: str, cluster: StoredCluster, tmp_path: Path
) -> None:
    carriers = [*ODD, *NO_FOLDERS, None, ODD[0]]
    values = [json.dumps({"id": number, "carrier": one}) for number, one in enumerate(carriers)]
    put(cluster, *(value.encode() for value in values), b"no JSON")
    folder = tmp_path / "target"
    target = open_target(str(folder))
    export(cluster, target, "events", format=form, value="json", by="carrier", limits=TINY)
    put(cluster, b'{"id": 20, "carrier": 7}', b'{"id": 21, "carrier": "UA", "far": 1}', number=1)
    export(cluster, target, "events", format=form, value="json", by="carrier", limits=TINY)

    found = rows(folder, form, "id, carrier, value")
    wanted: list[Any] = [(number, one, None) for number, one in enumerate(carriers[: len(ODD)])]
    wanted += [
        (number, None, values[number].encode()) for number in range(len(ODD), len(ODD) + len(NO_FOLDERS))
    ]
    wanted += [(8, None, None), (9, ODD[0], None), (None, None, b"no JSON")]
    wanted += [(20, "7", None), (21, "UA", None)]
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))
    folders = {path.parent.name for path in folder.rglob("*.parquet")}
    if form == "delta":  # its log has paths as URIs (the protocol's "Add File")
        logs = [path.read_text() for path in sorted((folder / "topic=events" / "_delta_log").glob("*.json"))]
        assert any('"path":"carrier=A%252FB%2520c%2525d%253D1/' in log for log in logs)
    if form == "iceberg":
        catalog = load_catalog("strandline", type="sql", uri=f"sqlite:///{folder}/_strandline/catalog.db")
        (field,) = catalog.load_table(("strandline", "events")).spec().fields
        assert (field.name, str(field.transform)) == ("by_carrier", "identity")
    assert {"carrier=9E", "carrier=A%2FB%20c%25d%3D1", "carrier=__HIVE_DEFAULT_PARTITION__"} < folders
    assert check(target).problems == []
    # Builds that do not know such targets say so.
    assert json.loads((folder / plan_name(1)).read_text())["format"] == 4


@pytest.mark.parametrize(
    ("by", "columns", "why"),
    [
        ("nosuch", (), "topic 'events' has no column 'nosuch' to be partitioned by: name one of a field"),
        (
            "price",
            (),
            "topic 'events' cannot be partitioned by 'price', whose values are no names of folders",
        ),
        ("at", ("events: at timestamp",), "cannot be partitioned by 'at'"),
        ("offset", (), "has no column 'offset'"),
    ],
)
def test_what_a_target_cannot_be_partitioned_by_is_said_before_anything_is_written(
    by: str, columns: tuple[str, ...], why: str, cluster: StoredCluster, tmp_path: Path
) -> None:
    put(cluster, b'{"price": 1.5}')
    target = open_target(str(tmp_path / "target"))
    with pytest.raises(ExportError, match=why):
        export(cluster, target, "events", value="json", by=by, columns=columns)
    with pytest.raises(ExportError, match=f"--partition-by {by} is a column of values, and they are bytes"):
        export(cluster, target, "events", by=by)
    assert target.list("") == []


@pytest.mark.parametrize("killed", [False, True])
def test_a_column_of_too_many_values_leaves_nothing_of_its_round(
    cluster: StoredCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """The first file's part is one record, and written by then; the second has four values."""
    monkeypatch.setattr(parquet, "MOST_FOLDERS", 3)
    put(cluster, json.dumps({"id": 1, "carrier": "AA", "pad": "x" * 500}).encode())
    put(cluster, b'{"id": 2, "carrier": "BB"}', b'{"id": 3, "carrier": "CC"}')
    put(cluster, b'{"id": 4, "carrier": "DD"}', b'{"id": 5, "carrier": "EE"}')
    target = open_target(str(tmp_path / "target"))
    how: dict[str, Any] = {"value": "json", "by": "carrier", "run": here}
    if killed:
        with pytest.raises(Killed):
            export(cluster, Mortal(target, 3, True), "events", **how, limits=Limits(file_bytes=400))
        assert list((tmp_path / "target").rglob("*.parquet"))
    why = "carrier has more than 3 values in a file's part of topic 'events'; of this round nothing is left: "
    with pytest.raises(ExportError, match=why):
        export(cluster, target, "events", **how, limits=Limits(file_bytes=400))
    assert target.list("") == []
    assert export(cluster, target, "events", **how, limits=TINY).records == 5
    found = check(target)
    assert (found.problems, found.records) == ([], 5)


@pytest.mark.parametrize(
    ("kind", "value", "name"),
    [("boolean", True, "true"), ("bigint", -3, "-3"), ("date", "2024-02-29", "2024-02-29")],
)
@pytest.mark.parametrize("form", FORMATS)
def test_folders_of_other_types(
    form: str, kind: str, value: Any, name: str, cluster: StoredCluster, tmp_path: Path
) -> None:
    put(cluster, json.dumps({"id": 1, "kind": value}).encode(), b'{"id": 2}')
    folder = tmp_path / "target"
    given = (f"events: id bigint, kind {kind}",)
    export(cluster, open_target(str(folder)), "events", format=form, value="json", by="kind", columns=given)
    found = {number: str(one).lower() for number, one in rows(folder, form, "id, kind") if number}
    assert found == {1: name, 2: "none"}
    assert (folder / "topic=events" / f"kind={name}").is_dir()


@pytest.mark.parametrize("form", FORMATS)
def test_a_field_that_no_sample_had_is_kept_and_a_later_round_has_its_column(
    cluster: StoredCluster, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.snapshot.spark.sample.SAMPLED_RECORDS", 1)
    folder = tmp_path / "lake"
    target = open_target(str(folder))
    middle = b'{"id": 2, "rare": "x"}'
    put(cluster, b'{"id": 1}', middle, b'{"id": 3}')
    assert export(cluster, target, "events", format=form, value="json").unfit == 1
    assert rows(folder, form, "id, value") == [(1, None), (2, middle), (3, None)]
    put(cluster, b'{"rare": "y"}')
    assert export(cluster, target, "events").unfit == 0
    assert rows(folder, form, "id, rare, value")[1:] == [
        (2, None, middle),
        (3, None, None),
        (None, "y", None),
    ]


@pytest.mark.parametrize("form", FORMATS)
def test_killed_at_changes_of_the_target_it_ends_with_each_record_once(
    cluster: StoredCluster, tmp_path: Path, form: str
) -> None:
    folder = tmp_path / "lake"
    inner = open_target(str(folder))
    for number in range(6):
        put(cluster, b'{"id": %d, "f%d": 1}' % (number, number), b"bad", number=0)
    killed = 0
    while killed < 100:
        try:
            target = Mortal(inner, 1 + killed % 4, killed % 2 == 1)
            export(cluster, target, "events", format=form, value="json", run=here, limits=TINY)
        except Killed:
            killed += 1
            continue
        break
    assert killed > 5
    assert rows(folder, form, "id, value") == [
        one for number in range(6) for one in ((number, None), (None, b"bad"))
    ]
    found = check(inner)
    assert (found.problems, found.unfinished) == ([], None)


def test_a_column_of_another_type_that_an_engine_added_is_refused(
    cluster: StoredCluster, tmp_path: Path
) -> None:
    target = open_target(str(tmp_path / "lake"))
    put(cluster, b'{"id": 1}')
    export(cluster, target, "events", format="delta", value="json")
    table = DeltaTable(str(tmp_path / "lake" / "topic=events"))
    table.alter.add_columns([DeltaField("theirs", PrimitiveType("integer"))])
    put(cluster, b'{"id": 2, "more": 1}')
    export(cluster, target, "events")
    assert rows(tmp_path / "lake", "delta", "id, more, theirs") == [(1, None, None), (2, 1, None)]
    put(cluster, b'{"theirs": "text"}')
    with pytest.raises(ExportError, match="has a column 'theirs' of another type"):
        export(cluster, target, "events")


def test_a_target_of_bytes_stays_one_that_earlier_builds_read(cluster: StoredCluster, tmp_path: Path) -> None:
    put(cluster, b'{"id": 1}')
    for value, number in (("bytes", 2), ("json", 3)):
        target = open_target(str(tmp_path / value))
        export(cluster, target, "events", value=value)
        for name in (plan_name(1), manifest_name(1)):
            told = json.loads(target.get(name))
            assert told["format"] == number
            assert ("value" in told.get("plan", told)["settings"]) == (value == "json")
        assert export(cluster, target, "events").rounds == 0
        with pytest.raises(ExportError, match=f"was begun with --value {value}"):
            export(cluster, target, "events", value="json" if value == "bytes" else "bytes")


def test_the_command_tells_of_values_that_do_not_fit(
    cluster: StoredCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cluster, b'{"id": 1}', b"no JSON", b'{"id": 3}')
    lake = str(tmp_path / "lake")
    arguments = ("export", "events", "--storage", cluster.url, "--to", lake, "--value")
    refused = strandline(capfd, monkeypatch, *arguments, "avro")
    assert refused.err == "strandline: --value is avro; choose from bytes, json\n"
    given = ("--columns", "events: id bigint")
    assert "--columns is of --value json" in strandline(capfd, monkeypatch, *arguments, "bytes", *given).err
    other = strandline(capfd, monkeypatch, *arguments, "json", "--columns", "other: id bigint")
    assert "columns of topic 'other' are given, which is not exported" in other.err
    assert not Path(lake, "topic=events").exists()
    done = strandline(capfd, monkeypatch, *arguments, "json", *given)
    assert "; 1 value not wholly in columns, and kept in the column value\n" in done.out


@pytest.mark.parametrize("form", FORMATS)
def test_columns_that_are_given_are_those_that_there_are(
    cluster: StoredCluster, tmp_path: Path, form: str
) -> None:
    folder = tmp_path / "lake"
    target = open_target(str(folder))
    given = "events: id bigint, at TIMESTAMP, `on` date, tags array<struct<name: string, n double>>"
    value = b'{"id": 1, "at": "2024-01-02T03:04:05.5+01:00", "on": "2024-02-29", "tags": [{"n": 1}]}'
    local = b'{"at": "2024-01-02T03:04:05", "on": "2023-02-29"}'
    fine = b'{"at": "2024-01-02T03:04:05.1234567Z", "on": 5}'
    put(cluster, value, local, fine)
    done = export(cluster, target, "events", format=form, value="json", columns=[given])
    assert (done.records, done.unfit) == (3, 2)
    columns = 'id, epoch_us("at"), "on"::VARCHAR, tags[1].n, value'
    moment = 1_704_161_045_500_000
    first = (1, moment, "2024-02-29", 1.0, None)
    assert rows(folder, form, columns) == [first, *((None, None, None, None, one) for one in (local, fine))]
    put(cluster, b'{"id": 2, "more": true}')
    assert export(cluster, target, "events").unfit == 1  # none are inferred, also where none are given
    put(cluster, b'{"id": 3, "more": true}')
    assert export(cluster, target, "events", columns=["events: more boolean"]).unfit == 0
    kept = b'{"id": 2, "more": true}'
    assert rows(folder, form, "id, more, value")[3:] == [(2, None, kept), (3, True, None)]
    put(cluster, b'{"id": 4}')
    with pytest.raises(ExportError, match="column 'id' of topic 'events' is STRING, and the target has"):
        export(cluster, target, "events", columns=["events: id string"])
    with pytest.raises(ExportError, match="names differ in case alone"):
        export(cluster, target, "events", columns=["events: ID bigint"])
    assert export(cluster, target, "events").records == 1


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["id bigint"], "begin with no topic"),
        (["e: id bigint", "e: no bigint"], "are given twice"),
        (["e:"], "'the end' stands where a field was expected"),
        (["e: id"], "'the end' stands where a type was expected"),
        (["e: id bigint,"], "'the end' stands where a field was expected"),
        (["e: id bigint no bigint"], "'no' stands where a comma was expected"),
        (["e: id number"], "'number' is no type"),
        (["e: id array<bigint"], "'>' is missing"),
        (["e: id array"], "'<' is missing"),
        (["e: id struct<>"], "'>' stands where a field was expected"),
        (["e: id struct<a: bigint, A: bigint>"], "'A' is there twice"),
        (["e: id bigint, ID bigint"], "'ID' is there twice"),
        (["e: `a b` bigint"], "'a b' cannot be the name of a column"),
        (["e: `a bigint"], "a backquote is open"),
        (["e: " + ", ".join(f"f{number} bigint" for number in range(201))], "200 are the most"),
    ],
)
def test_columns_that_are_given_wrongly_are_refused(given: list[str], why: str) -> None:
    with pytest.raises(ExportError) as caught:
        given_columns(given)
    assert why in caught.value.cause
    assert "TOPIC: FIELD TYPE" in caught.value.cure or "give them once" in caught.value.cure
