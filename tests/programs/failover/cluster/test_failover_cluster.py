"""The driver that hurts a whole cluster: its checks can fail, its faults do what they say, and it runs."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs.failover.cluster.faults import FAULTS, Class, schedule
from tests.programs.failover.cluster.load import NO_PLACE, Told, parsed, value_of
from tests.programs.failover.cluster.reading import Read, compare
from tests.programs.failover.cluster.report import Report, Round, plain, show
from tests.programs.failover.cluster.run import drive
from tests.programs.failover.cluster.small_disk import SmallDisk, take_reserve_back
from tests.programs.failover.cluster.store_proxy import StoreProxy

KILL = "kill -9, a leader"


class Record:
    """What a consumer gives, as far as it is looked at."""

    def __init__(self, partition: int, offset: int, value: bytes) -> None:
        self._partition, self._offset, self._value = partition, offset, value

    def error(self) -> None:
        return None

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return self._value


def read_of(*sequences: int, offsets: tuple[int, ...] | None = None) -> Read:
    """Partition 0 with these records of producer 7."""
    read = Read({0: 0})
    for offset, sequence in zip(offsets or range(len(sequences)), sequences, strict=True):
        read.take(Record(0, offset, value_of(7, sequence)))  # type: ignore[arg-type]
    return read


def told_of(*places: int, sent: int | None = None) -> Told:
    """Records 0, 1, … of producer 7 were acknowledged at these offsets of partition 0."""
    told = Told()
    told.sent[7] = len(places) if sent is None else sent
    for sequence, offset in enumerate(places):
        told.acknowledged[7][sequence] = (0, offset)
    return told


def test_what_was_acknowledged_and_is_there_once_is_well() -> None:
    assert compare(told_of(0, 1, 2), read_of(0, 1, 2)).ok
    assert compare(told_of(0, 1, sent=3), read_of(0, 1, 2)).ok, "one that failed may be there"
    assert compare(told_of(0, 1, sent=3), read_of(0, 1)).ok, "or not"


def test_one_that_was_acknowledged_without_a_place_must_be_there_all_the_same() -> None:
    """librdkafka acknowledges a batch whose own answer was lost when one behind it is acknowledged."""
    assert compare(told_of(0, NO_PLACE, 2), read_of(0, 1, 2)).ok
    assert compare(told_of(0, NO_PLACE, 1), read_of(0, 2)).lost == 1


def test_a_record_that_is_missing_is_lost() -> None:
    compared = compare(told_of(0, 1, 2), read_of(0, 2))
    assert compared.lost == 1
    assert "record 1 of producer 7, acknowledged at 0/1, is lost" in compared.findings
    assert compare(told_of(0, 1), read_of(0)).lost == 1


def test_a_record_that_is_there_twice_is_doubled() -> None:
    assert compare(told_of(0, 1), read_of(0, 1, 1)).doubled == 1


def test_a_record_that_lies_elsewhere_is_found() -> None:
    assert (
        "record 1 of producer 7, acknowledged at 0/4, is at 0/1"
        in compare(told_of(0, 4), read_of(0, 1)).findings
    )


def test_order_gaps_and_strangers_are_found() -> None:
    assert any("record 0 of producer 7 after 1" in text for text in read_of(1, 0).findings)
    assert any("offset 5 came after 0" in text for text in read_of(0, 1, offsets=(0, 5)).findings)
    assert any("never sent" in text for text in compare(told_of(0), read_of(0, 1)).findings)
    read = Read({0: 0})
    read.take(Record(0, 0, b"1 2 else"))  # type: ignore[arg-type]
    assert any("no record of this load" in text for text in read.findings)


def test_values_are_what_they_were_made_of() -> None:
    assert parsed(value_of(3, 1_000_000)) == (3, 1_000_000)


def report_of(*gaps: float, kind: str = KILL) -> Report:
    return Report(
        1,
        "local",
        rounds=[Round(kind, gap, gap, 10.0) for gap in gaps],
        acknowledged=10,
        checks=1,
    )


def test_a_report_fails_on_what_must_not_be() -> None:
    good = report_of(0.5)
    assert not good.failures()
    assert "failover ok: 1 rounds, 10 records acknowledged, 0 lost, 0 doubled" in show(good)
    assert plain(good)["gaps"][KILL]["p95"] == 0.5
    assert report_of(0.5, 1.5).failures()
    assert not report_of(5.0, kind="SIGSTOP, a leader").failures(), "a client waits for who is there"
    for change in ({"lost": 1}, {"doubled": 1}, {"findings": ["x"]}, {"acknowledged": 0}, {"checks": 0}):
        bad = report_of(0.5)
        for name, value in change.items():
            setattr(bad, name, value)
        assert bad.failures(), change
        assert "failover failed: 1 findings; 1 rounds" in show(bad)


def test_every_kind_of_fault_has_its_turn_and_a_class() -> None:
    kinds = list(FAULTS)
    assert sorted(schedule(2 * len(kinds), kinds, random.Random(3))) == sorted(2 * kinds)
    assert {fault.kind for fault in FAULTS.values()} == set(Class)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    if not SmallDisk.possible():
        pytest.skip("needs root, to mount a small disk")
    disk = SmallDisk(tmp_path / "disk", 8 << 20)
    try:
        yield disk
    finally:
        disk.unmount()


def test_a_small_disk_is_full_and_has_room_again(small_disk: SmallDisk) -> None:
    file = small_disk.path / "file"
    file.write_bytes(bytes(10_000))
    small_disk.fill()
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        (small_disk.path / "more").write_bytes(bytes(10_000))
    small_disk.free()
    (small_disk.path / "more").write_bytes(bytes(10_000))


def test_space_that_was_set_aside_can_be_taken_back(small_disk: SmallDisk) -> None:
    file = small_disk.path / "segment"
    with file.open("wb") as segment:
        os.posix_fallocate(segment.fileno(), 0, 4 << 20)
        segment.write(b"x" * 5_000)
    take_reserve_back(file)
    assert file.read_bytes() == b"x" * 5_000 + bytes((4 << 20) - 5_000)
    small_disk.fill()
    with file.open("r+b", buffering=0) as segment:
        segment.seek(5_000)
        assert segment.write(bytes(3_192)) == 3_192, "the rest of the last page is there"
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            segment.write(b"x")
    small_disk.free()


async def asks(proxy: StoreProxy, line: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        writer.write(line + b" HTTP/1.1\r\n\r\n")
        return await asyncio.wait_for(reader.read(100), 5.0)
    except ConnectionError:
        return b"broken"
    finally:
        writer.close()


async def through_a_proxy() -> list[bytes]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(100):
            writer.write(b"fine")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    proxy = StoreProxy(random.Random(1))
    proxy.target_port = server.sockets[0].getsockname()[1]
    await proxy.open()
    heard = [await asks(proxy, b"GET /a")]
    proxy.refuse()
    heard.append(await asks(proxy, b"GET /b"))
    proxy.calm()
    proxy.reset_chance = 1.0
    heard.append(await asks(proxy, b"GET /c"))
    proxy.calm()
    proxy.hold = lambda line: line.startswith("PUT")
    held = asyncio.create_task(asks(proxy, b"PUT /d"))
    await asyncio.sleep(0.1)
    heard.append(await asks(proxy, b"GET /e"))
    assert proxy.held == ["PUT /d HTTP/1.1"]
    assert not held.done()
    proxy.release()
    heard.append(await held)
    loop = asyncio.get_running_loop()
    began = loop.time()
    proxy.delays = (0.1, 0.2)
    heard.append(await asks(proxy, b"GET /f"))
    assert loop.time() - began > 0.09
    await proxy.close()
    server.close()
    return heard


def test_the_store_refuses_breaks_off_and_is_slow_behind_the_proxy() -> None:
    assert asyncio.run(through_a_proxy()) == [b"fine", b"broken", b"broken", b"fine", b"fine", b"fine"]


@pytest.mark.timeout(300)
def test_a_killed_leader_and_a_clean_restart_lose_nothing(tmp_path: Path) -> None:
    kinds = (KILL, "SIGTERM, a leader")
    report = asyncio.run(
        drive(tmp_path, 2, seed=5, storage="local", kinds=kinds, audits=False, small_disks=False)
    )
    assert not report.findings
    assert (report.lost, report.doubled) == (0, 0)
    assert sorted(each.kind for each in report.rounds) == sorted(kinds)
    assert report.read_back == report.acknowledged > 1_000
