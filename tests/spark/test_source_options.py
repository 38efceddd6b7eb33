"""What options mean, and what each wrong one says."""

from __future__ import annotations

import re

import pytest

from strandline.snapshot.spark.options import EARLIEST, LATEST, SourceError, parse

LEAST = {"url": "/data", "topic": "orders"}


def test_defaults() -> None:
    options = parse(LEAST)
    assert options.topics == {"orders": None}
    assert (options.starting.of("orders", 0), options.ending.of("orders", 0)) == (EARLIEST, LATEST)
    assert (options.starting_timestamp, options.ending_timestamp, options.min_partitions) == (None,) * 3
    assert options.cluster is None
    assert options.committed


@pytest.mark.parametrize("name", ["isolation_level", "isolationLevel"])
def test_the_isolation_level_is_one_of_kafkas(name: str) -> None:
    assert parse({**LEAST, name: "read_committed"}).committed
    assert not parse({**LEAST, name: "READ_UNCOMMITTED"}).committed


@pytest.mark.parametrize("name", ["starting_offset", "startingOffsets", "startingoffset"])
def test_names_are_ours_or_kafkas(name: str) -> None:
    options = parse({"path": "/data", "subscribe": "a, b", name: '{"a": {"0": 23, "1": -1}}'})
    assert options.topics == {"a": None, "b": None}
    starts = [options.starting.of("a", 0), options.starting.of("a", 1), options.starting.of("b", 0)]
    assert starts == [23, LATEST, EARLIEST]


def test_partitions_times_and_storage() -> None:
    options = parse(
        {
            **LEAST,
            "partitions": "0,2-4",
            "startingTimestamp": "2026-01-31T12:00:00+01:00",
            "ending_timestamp": "1769857200001",
            "minPartitions": "7",
            "storage.endpoint": "http://127.0.0.1:1",
        }
    )
    assert options.topics == {"orders": frozenset({0, 2, 3, 4})}
    assert (options.starting_timestamp, options.ending_timestamp) == (1769857200000, 1769857200001)
    assert options.min_partitions == 7
    assert options.storage == {"endpoint": "http://127.0.0.1:1"}


def test_assign() -> None:
    assert parse({"url": "/data", "assign": '{"a": [1], "b": [0, 2]}'}).topics == {
        "a": frozenset({1}),
        "b": frozenset({0, 2}),
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "a"}, "option 'url' is missing"),
        ({"url": "/data"}, "option 'topic' is missing"),
        ({**LEAST, "startingOfset": "3"}, "there is no option 'startingOfset'"),
        ({**LEAST, "subscribe": "other"}, "given twice: 'orders' and 'other'"),
        ({**LEAST, "assign": '{"a": [0]}'}, "give no 'topic'"),
        ({"url": "/data", "assign": '{"a": 0}'}, "not JSON like"),
        ({**LEAST, "partitions": "1-"}, "option 'partitions' is '1-', not numbers and ranges"),
        ({**LEAST, "starting_offset": "newest"}, "is 'newest', not earliest, latest"),
        ({**LEAST, "starting_offset": '{"orders": 5}'}, "not earliest, latest"),
        ({**LEAST, "starting_offset": '{"orders": {"0": -3}}'}, "not earliest, latest"),
        ({**LEAST, "starting_timestamp": "2026-01-31T12:00:00"}, "or a time with its zone"),
        ({**LEAST, "ending_timestamp": "soon"}, "or a time with its zone"),
        ({**LEAST, "min_partitions": "0"}, "not a positive number"),
        ({**LEAST, "checkpoint": "newest"}, "option 'checkpoint' is 'newest', not a positive number"),
        ({**LEAST, "isolation_level": "snapshot"}, "is 'snapshot', not read_committed or read_uncommitted"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(options: dict[str, str], message: str) -> None:
    with pytest.raises(SourceError, match=re.escape(message)) as caught:
        parse(options)
    assert "\n" not in str(caught.value)
