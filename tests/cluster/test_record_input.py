"""What `produce` makes of lines, and what it refuses."""

from __future__ import annotations

import json

import pytest

from strandline.cluster.commands.record_input import BadLine, Record, reader
from strandline.cluster.failure import MISUSED, CommandFailed


def of_json(plain: object) -> Record:
    return reader("json", None, None, [], False)(json.dumps(plain).encode())


def test_lines_as_they_are() -> None:
    assert reader("value", None, None, [], False)(b"a:b") == Record(None, b"a:b")
    assert reader("value", "k", None, ["h=1"], False)(b"v") == Record(b"k", b"v", (("h", b"1"),))
    assert reader("value", None, "\\t", [], False)(b"k\tv\tw") == Record(b"k", b"v\tw")
    assert reader("value", None, None, [], True)(b"k") == Record(b"k", None)


def test_objects() -> None:
    assert of_json({}) == Record(None, None)
    assert of_json({"key": "k", "value": None, "partition": 3, "offset": 9}) == Record(b"k", None)
    assert of_json({"value": {"ä": [1, None]}, "key": 7}) == Record(b"7", '{"ä":[1,null]}'.encode())
    assert of_json({"value_base64": "/w==", "timestamp_ms": 5}) == Record(None, b"\xff", (), 5)
    headers = [{"name": "a", "value": "1"}, {"name": "b"}, {"name": "c", "value_base64": "/w=="}]
    assert of_json({"headers": headers}).headers == (("a", b"1"), ("b", None), ("c", b"\xff"))
    assert reader("json", None, None, ["z=9"], False)(b'{"headers": null}').headers == (("z", b"9"),)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'"x"', "not a JSON object"),
        (b'{"vlaue": 1}', "a field 'vlaue'"),
        (b'{"value": "a", "value_base64": "YQ=="}', "value and value_base64"),
        (b'{"value_base64": "not!"}', "not base64"),
        (b'{"key_base64": 7}', "not base64"),
        (b'{"timestamp_ms": "now"}', "not a time"),
        (b'{"timestamp_ms": -1}', "not a time"),
        (b'{"timestamp_ms": true}', "not a time"),
        (b'{"timestamp_ms": 99999999999999999999}', "not a time"),
        (b'{"headers": {"a": "b"}}', "headers"),
        (b'{"headers": [["a", "b"]]}', "headers"),
        (b'{"value": "\\ud800"}', "no Unicode"),
    ],
)
def test_a_line_that_is_no_record_says_why(line: bytes, why: str) -> None:
    with pytest.raises(BadLine, match=why) as caught:
        reader("json", None, None, [], False)(line)
    assert caught.value.cure


@pytest.mark.parametrize(
    ("form", "key", "separator", "headers", "tombstone"),
    [
        ("xml", None, None, [], False),
        ("json", "k", None, [], False),
        ("json", None, ",", [], False),
        ("json", None, None, [], True),
        ("value", "k", ",", [], False),
        ("value", None, ",", [], True),
        ("value", None, "", [], False),
        ("value", None, None, ["x"], False),
        ("value", None, None, ["=x"], False),
    ],
)
def test_options_that_exclude_each_other(
    form: str, key: str | None, separator: str | None, headers: list[str], tombstone: bool
) -> None:
    with pytest.raises(CommandFailed) as caught:
        reader(form, key, separator, headers, tombstone)
    assert caught.value.status == MISUSED
