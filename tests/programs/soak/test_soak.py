"""The soak: its checks can fail, on each thing that they are there for; and a short run of it holds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.forked_nodes import ForkedCluster
from tests.programs.failover.cluster import nodes
from tests.programs.failover.cluster.stores import LocalStorage
from tests.programs.soak.judging import LATE_SECONDS, OBJECT_BYTES, RECORD_OVERHEAD, retention_findings
from tests.programs.soak.ledger import (
    NO_PLACE,
    RUN,
    Kept,
    Stream,
    TopicRead,
    compare,
    newest_below,
    oldest_from,
)
from tests.programs.soak.reading import Reader
from tests.programs.soak.records import LARGEST, parsed, size_of, value_of
from tests.programs.soak.report import Report, plain, show
from tests.programs.soak.run import drive
from tests.programs.soak.settings import SETTINGS
from tests.programs.soak.stored import Held, disk_bytes, stored
from tests.programs.soak.topics import RETENTION_BYTES, RETENTION_SECONDS, TOPICS, Goes, Topic

NOW = 1_800_000_000.0


def stream_of(*offsets: int, number: int = 7, made: float = NOW) -> Stream:
    """Records 0, 1, … of one stream, acknowledged at these offsets of partition 0 (NO_PLACE: somewhere)."""
    stream = Stream(number, "birds", 1)
    for sequence, offset in enumerate(offsets):
        stream.sent()
        stream.made_at[-1] = made + sequence
        stream.delivered(sequence, 0, None if offset == NO_PLACE else offset)
    return stream


def read_of(stream: Stream, *records: tuple[int, int], low: int = 0) -> TopicRead:
    """(offset, sequence) of that stream as they were read of partition 0."""
    read = TopicRead("birds", {stream.number: stream})
    for offset, sequence in records:
        read.take(0, offset, value_of(stream.number, sequence))
    high = max((offset + 1 for offset, _ in records), default=low)
    read.partitions[0] = Kept(low, high, len(records), 0)
    return read


def test_values_follow_from_who_sent_them_and_are_taken_byte_for_byte() -> None:
    sizes = []
    for sequence in range(2_000):
        value = value_of(3, sequence)
        assert (len(value), parsed(value)) == (size_of(3, sequence), (3, sequence))
        sizes.append(len(value))
    assert max(sizes) <= LARGEST
    assert max(sizes) > 200_000
    assert 6_000 < sum(sizes) / len(sizes) < 14_000
    value = value_of(3, 5)
    damaged = value[:50] + bytes([value[50] ^ 1]) + value[51:]
    for bad in (damaged, value[:-1], value + b".", b"3 5 ", b"", b"x y z", b"-1 5 x", None):
        with pytest.raises(ValueError, match="no record of this load"):
            parsed(bad)


def test_what_is_acknowledged_and_retained_must_be_there_once_where_it_was_said_to_be() -> None:
    stream = stream_of(10, 11, 12)
    well = compare(read_of(stream, (10, 0), (11, 1), (12, 2), low=10))
    assert (well.expected, well.lost, well.moved, well.doubled, well.findings) == (3, 0, 0, 0, [])
    assert compare(read_of(stream, (10, 0), (12, 2), low=10)).lost == 1
    assert compare(read_of(stream, (10, 0), (11, 1), (13, 2), low=10)).moved == 1
    assert compare(read_of(stream, (10, 0), (11, 1), (12, 2), (13, 2), low=10)).doubled == 1


def test_what_lies_below_the_first_offset_may_be_gone_and_nothing_else() -> None:
    stream = stream_of(10, 11, 12)
    gone = compare(read_of(stream, (12, 2), low=12))
    assert (gone.expected, gone.lost) == (1, 0)
    assert compare(read_of(stream, (12, 2), low=11)).lost == 1


def test_one_without_a_place_is_lost_only_where_all_behind_it_is_retained() -> None:
    """What stands before it in its stream and partition says how low it can lie."""
    stream = stream_of(10, NO_PLACE, 12)
    assert compare(read_of(stream, (10, 0), (12, 2), low=10)).lost == 1
    assert compare(read_of(stream, (12, 2), low=11)).lost == 0, "it may be below 11"
    assert compare(read_of(stream, (10, 0), (11, 1), (12, 2), low=10)).expected == 3


def test_strangers_and_disorder_are_found() -> None:
    stream = stream_of(0, 1)
    assert "was never sent there" in read_of(stream, (0, 2)).findings[0]
    read = read_of(stream)
    read.take(0, 0, value_of(8, 0))
    read.take(0, 1, b"8 0 else")
    assert ["never sent" in read.findings[0], "no record" in read.findings[1]] == [True, True]
    assert "record 0 of stream 7 comes after 1" in read_of(stream, (0, 1), (1, 0)).findings[0]


def test_runs_of_records_go_to_one_partition_after_the_other() -> None:
    stream = Stream(1, "birds", 3)
    assert [stream.partition_of(RUN * turn) for turn in range(4)] == [0, 1, 2, 0]
    assert len({stream.partition_of(sequence) for sequence in range(RUN)}) == 1


class Place:
    """What retention_findings looks at of a life."""

    def __init__(self, goes: Goes, stream: Stream) -> None:
        self.topic = Topic("birds", goes, 1, 1, 1.0, {})
        self.streams = {stream.number: stream}
        self.low_asked: dict[int, int] = {}
        self.low_told: dict[int, int] = {}


def retention(goes: Goes, kept: Kept, stream: Stream | None = None, **lows: Any) -> list[str]:
    stream = stream or stream_of(0, 1, 2)
    life: Any = Place(goes, stream)
    for name, value in lows.items():
        setattr(life, name, value)
    read = TopicRead("birds", life.streams, {0: kept})
    return retention_findings(life, read, NOW + 100)


def test_nothing_goes_where_nothing_is_to_go() -> None:
    for goes in (Goes.NEVER, Goes.RENEWED):
        assert retention(goes, Kept(0, 3)) == []
        assert "begins at 1" in retention(goes, Kept(1, 3))[0]


def test_delete_records_takes_what_was_asked_for() -> None:
    lows: dict[str, Any] = {"low_asked": {0: 9}, "low_told": {0: 5}}
    for low, well in ((4, False), (5, True), (9, True), (10, False)):
        assert (retention(Goes.TRIMMED, Kept(low, 20), **lows) == []) is well, low
    assert retention(Goes.TRIMMED, Kept(1, 20)) != []


def test_retention_by_size_takes_neither_too_much_nor_too_little() -> None:
    assert retention(Goes.SIZE, Kept(0, 9, 10, 100)) == []
    assert retention(Goes.SIZE, Kept(5, 9, 10, RETENTION_BYTES)) == []
    assert "at most" in retention(Goes.SIZE, Kept(5, 9, 10, RETENTION_BYTES - 11 * RECORD_OVERHEAD))[0]
    assert "one object" in retention(Goes.SIZE, Kept(0, 9, 10, RETENTION_BYTES + OBJECT_BYTES + 1))[0]


def test_retention_by_time_takes_neither_too_early_nor_too_late() -> None:
    now = NOW + 100
    old, late = now - RETENTION_SECONDS - 3, now - RETENTION_SECONDS - LATE_SECONDS - 10
    assert retention(Goes.TIME, Kept(2, 3), stream_of(0, 1, 2, made=old)) == []
    assert "deleted already" in retention(Goes.TIME, Kept(2, 3), stream_of(0, 1, 2, made=now - 20))[0]
    assert "still there" in retention(Goes.TIME, Kept(0, 3), stream_of(0, 1, 2, made=late))[0]
    assert retention(Goes.TIME, Kept(3, 3), stream_of(0, 1, 2, made=late)) == []


def test_the_times_at_an_offset() -> None:
    stream = stream_of(5, 6, NO_PLACE, 8)
    assert (newest_below([stream], 0, 6), newest_below([stream], 0, 5)) == (NOW, None)
    assert (oldest_from([stream], 0, 6), oldest_from([stream], 0, 9)) == (NOW + 1, None)
    assert newest_below([stream], 1, 100) is None


class Message:
    def __init__(self, offset: int, value: bytes) -> None:
        self._offset, self._value = offset, value

    def error(self) -> None:
        return None

    def topic(self) -> str:
        return "birds"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return self._value

    def __len__(self) -> int:
        return len(self._value)


def test_a_reader_takes_a_gap_only_where_the_offsets_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    lows = iter((7, 7, 20))
    monkeypatch.setattr("tests.programs.soak.reading._bounds", lambda *_: (next(lows), 100))
    reader = Reader("127.0.0.1:1", "a reader")
    for offset in (3, 4, 7):
        reader._take(Message(offset, value_of(1, offset)))  # type: ignore[arg-type]
    assert reader.findings == []
    reader._take(Message(9, value_of(1, 9)))  # type: ignore[arg-type]
    assert "offset 9 came for 8; the first there is 7" in reader.findings[0]
    reader._take(Message(5, value_of(1, 5)))  # type: ignore[arg-type]
    assert "offset 5 came for 10" in reader.findings[1], "nobody is taken back"
    reader._take(Message(6, b"1 6 else"))  # type: ignore[arg-type]
    assert "no record of this load" in reader.findings[2]


def test_what_is_stored_is_counted_by_level(tmp_path: Path) -> None:
    place = LocalStorage(tmp_path / "objects", small_disk=False)
    for name, size in (
        ("l0/0001/5/1-a", 3), ("l1/aa/0/1-b", 50), ("l1/aa/0/2-c", 7), ("snapshots/c/0000000004/9/1", 11),
        ("snapshots/c/0000000004/9/log-0", 2), ("else", 1), (".staged/x", 1000), ("l0/.tmp", 1000),
    ):  # fmt: skip
        file = Path(place.url) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(size))
    found = stored(place)
    assert (found.level_zero, found.level_one) == (Held(1, 3), Held(2, 57))
    assert (found.checkpoints, found.others) == (Held(2, 13), Held(1, 1))
    assert (dict(found.checkpoint_groups), found.bytes) == ({4: 2}, 74)
    assert disk_bytes(tmp_path) >= 8 * 512


def good(**changes: Any) -> Report:
    report = Report(
        1, storage="local", load_seconds=10.0, drained_seconds=1.0, level_zero_objects=0, level_one_objects=2,
        level_one_bytes=110, named_objects=2, named_bytes=110, retained_bytes=100, bound_bytes=20, expected=5,
        read_back=5, audited=1,
    )  # fmt: skip
    for name, value in changes.items():
        assert hasattr(report, name)
        setattr(report, name, value)
    return report


def test_a_report_of_a_run_that_held() -> None:
    assert good().failures() == []
    assert "soak ok:" in show(good())
    assert plain(good())["ok"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"lost": 1}, "lost"),
        ({"moved": 1}, "not where"),
        ({"doubled": 1}, "twice"),
        ({"drained_seconds": None}, "did not drain"),
        ({"level_zero_objects": 1}, "level zero holds 1"),
        ({"named_objects": 1}, "the partitions name 1"),
        ({"named_bytes": 109}, "of 109 B"),
        ({"bound_bytes": 9}, "10 B more than what retention keeps, above 9"),
        ({"retained_bytes": 111}, "1 B less"),
        ({"expected": 0}, "nothing was to be read back"),
        ({"audited": 0}, "audits"),
        ({"findings": ["a thing"]}, "a thing"),
    ],
)
def test_a_report_fails_on_what_must_not_be(changes: dict[str, Any], why: str) -> None:
    failures = good(**changes).failures()
    assert len(failures) == 1
    assert why in failures[0]
    assert "soak failed: 1 findings;" in show(good(**changes))


def test_every_way_in_which_records_go_has_its_topic_and_its_part_of_the_load() -> None:
    assert {topic.goes for topic in TOPICS} == set(Goes)
    assert sum(topic.share for topic in TOPICS) == pytest.approx(1.0)
    assert all("=" in setting for setting in SETTINGS)


@pytest.mark.timeout(300)
def test_a_short_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real nodes, one of which is killed; without the audits, which take longer than all of this."""
    monkeypatch.setattr(nodes, "LocalCluster", ForkedCluster)
    report = asyncio.run(drive(tmp_path, 4.0, 1, "local", rate=2e6, kill_every=4.0, audits=False))
    assert report.failures() == ["the audits did not all pass"], show(report)
    assert report.kills == 1
    assert report.acknowledged > 100
