"""The failover driver: its verdict can fail, its links do cut, and real processes lose nothing."""

from __future__ import annotations

import asyncio
import math
import random
from pathlib import Path

import pytest

from tests.programs.failover.faults import FAULTS, schedule
from tests.programs.failover.links import Link
from tests.programs.failover.run import Report, drive, show
from tests.programs.failover.verdict import Fate, NodeState, judge, longest_gap, percentile

FATES = {1: Fate.ACKNOWLEDGED, 2: Fate.UNKNOWN, 3: Fate.REJECTED, 4: Fate.ACKNOWLEDGED}


def node(*ids: int, doubled: tuple[int, ...] = (), digest: str = "same") -> NodeState:
    return NodeState(frozenset(ids), doubled, digest)


def test_all_is_well_with_and_without_the_unknown_command() -> None:
    assert judge(FATES, [node(1, 4)] * 3).ok
    assert judge(FATES, [node(1, 2, 4)] * 3).ok


def test_an_acknowledged_command_that_one_node_lacks_is_lost() -> None:
    assert judge(FATES, [node(1, 4), node(1), node(1, 4)]).lost == {4}


def test_a_command_that_one_node_applied_twice_is_doubled() -> None:
    assert judge(FATES, [node(1, 4), node(1, 4, doubled=(4,))]).doubled == {4}


def test_a_rejected_command_must_not_be_applied_nor_one_that_nobody_sent() -> None:
    assert judge(FATES, [node(1, 3, 4, 9)]).unbidden == {3, 9}


def test_nodes_must_hold_the_same_bytes() -> None:
    assert judge(FATES, [node(1, 4), node(1, 4, digest="other")]).differing


def test_the_gap_reaches_from_the_last_acknowledgement_before_the_fault_and_up_to_the_end() -> None:
    assert longest_gap([1.0, 2.0, 2.5, 4.0], since=2.6, until=4.2) == pytest.approx(1.5)
    assert longest_gap([1.0, 2.0], since=2.1, until=9.0) == pytest.approx(7.0)
    assert longest_gap([], since=2.0, until=3.0) == pytest.approx(1.0)


def test_percentiles_are_values_that_occurred() -> None:
    assert percentile([3.0, 1.0, 2.0, 4.0], 0.5) == 2.0
    assert percentile([float(value) for value in range(1, 21)], 0.95) == 19.0
    assert math.isnan(percentile([], 0.5))


def test_a_report_fails_on_loss_on_long_gaps_and_on_silence() -> None:
    good = Report(gaps={"SIGSTOP": [0.5]}, fates={Fate.ACKNOWLEDGED: 10})
    assert not good.failures()
    assert "failover ok: 1 rounds, 10 commands acknowledged, 0 lost, 0 doubled" in show(good)
    good.verdict = judge(FATES, [node(1)])
    assert "1 acknowledged commands were lost" in show(good)
    assert Report(gaps={"SIGSTOP": [0.5, 1.5]}, fates={Fate.ACKNOWLEDGED: 1}).failures()
    assert Report(gaps={"SIGSTOP": [0.5]}).failures()


def test_every_kind_of_fault_has_its_turn() -> None:
    assert sorted(schedule(2 * len(FAULTS), random.Random(3))) == sorted(2 * list(FAULTS))


async def cut_and_heal() -> list[tuple[str, bytes]]:
    """What an echo server's client hears through a link whose directions are cut one after the other."""
    heard = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            received.append(data)
            writer.write(data)
        writer.close()

    received: list[bytes] = []
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    link = Link(dialler=2, target=1)
    link.target_port = server.sockets[0].getsockname()[1]
    await link.open()
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)

    async def say(word: bytes) -> bytes:
        writer.write(word)
        try:
            return await asyncio.wait_for(reader.read(100), 0.2)
        except TimeoutError:
            return b""

    heard.append(("whole", await say(b"a")))
    link.cut([2])
    heard.append(("request held", await say(b"b")))
    assert received == [b"a"]
    link.heal()
    heard.append(("late", await asyncio.wait_for(reader.read(100), 2.0)))
    link.cut([1])
    heard.append(("answer held", await say(b"c")))
    assert received == [b"a", b"b", b"c"]
    link.heal()
    heard.append(("late", await asyncio.wait_for(reader.read(100), 2.0)))
    writer.close()
    await link.close()
    server.close()
    return heard


def test_a_cut_holds_back_one_direction_and_delivers_late() -> None:
    assert asyncio.run(cut_and_heal()) == [
        ("whole", b"a"), ("request held", b""), ("late", b"b"), ("answer held", b""), ("late", b"c"),
    ]  # fmt: skip


def test_a_killed_and_a_stopped_leader_lose_nothing(tmp_path: Path) -> None:
    report = asyncio.run(drive(tmp_path, rounds=2, seed=5, rate=200.0))
    assert not report.problems
    assert report.verdict.ok
    assert set(report.gaps) == {"kill -9", "SIGSTOP"}
    assert report.fates[Fate.ACKNOWLEDGED] > 300
