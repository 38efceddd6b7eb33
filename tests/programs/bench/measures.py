"""What is measured, and how: each measure is one function that serves both systems."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.programs.bench.systems import Strandline, System, cluster, leaders
from tests.programs.processes.control import NodeFailed, NodeProcess, running
from tests.programs.processes.latencies import merged, percentile

COMMAND_BYTES = 200
_SETTLE_SECONDS = 0.5
_CONVERGE_SECONDS = 20.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything. Times are seconds."""

    in_flight: tuple[int, ...] = (1, 64, 4096)
    warmup: float = 1.0
    seconds: float = 5.0
    groups: int = 100
    in_flight_each: int = 40
    idle_groups: int = 1000
    stock_idle_groups: int = 30
    idle_seconds: float = 10.0
    entries: int = 1_000_000
    snapshot_bytes: int = 100_000_000
    snapshot_seconds: float = 120.0


FULL = Scale()
QUICK = Scale(
    warmup=0.5, seconds=1.5, groups=30, idle_groups=200, stock_idle_groups=10, idle_seconds=3.0,
    entries=100_000, snapshot_bytes=10_000_000, snapshot_seconds=30.0,
)  # fmt: skip
TINY = Scale(
    in_flight=(8,), warmup=0.1, seconds=0.3, groups=3, in_flight_each=4, idle_groups=5, stock_idle_groups=2,
    idle_seconds=0.5, entries=2_000, snapshot_bytes=1_000_000, snapshot_seconds=20.0,
)  # fmt: skip


@dataclass(slots=True)
class Result:
    """What one system showed: figures by name, remarks for the reader, and whatever was wrong."""

    figures: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def middle(rounds: Sequence[Result]) -> Result:
    """The median of each figure, all notes, and all that was wrong."""
    found = Result()
    for name in dict.fromkeys(name for one in rounds for name in one.figures):
        found.figures[name] = statistics.median(one.figures[name] for one in rounds if name in one.figures)
    for one in rounds:
        found.notes += [note for note in one.notes if note not in found.notes]
        found.problems += one.problems
    return found


def sync_milliseconds(folder: Path, rounds: int = 500) -> float:
    """Median time to write 4 KiB to the disk under `folder` and `fdatasync` it."""
    path = folder / "sync"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        os.pwrite(fd, bytes(4096 * 64), 0)
        os.fsync(fd)
        times = []
        for turn in range(rounds):
            os.pwrite(fd, os.urandom(4096), turn % 64 * 4096)
            began = time.perf_counter()
            os.fdatasync(fd)
            times.append(time.perf_counter() - began)
        return statistics.median(times) * 1000
    finally:
        os.close(fd)
        path.unlink()


async def load(system: System, folder: Path, scale: Scale, in_flight: int, profile: int = 0) -> Result:
    """Commands on one group, so many at a time, as their proposer inside the leader sees them."""
    return await _load(system, folder, scale, 1, in_flight, profile)


async def many_groups(system: System, folder: Path, scale: Scale) -> Result:
    """Commands on many groups at once, each node loading those it leads."""
    result = await _load(system, folder, scale, scale.groups, scale.in_flight_each, 0)
    result.notes.append(f"{scale.groups} groups with {scale.in_flight_each} commands in flight each")
    return result


async def _load(
    system: System, folder: Path, scale: Scale, groups: int, in_flight: int, profile: int
) -> Result:
    async with cluster(system, folder, groups) as nodes:
        led = await leaders(nodes, groups)
        await asyncio.sleep(_SETTLE_SECONDS)
        if profile:
            await asyncio.gather(*(node.ask("profile_start") for node in nodes))
        before = await _usage(nodes)
        loads = await asyncio.gather(
            *(
                nodes[place].ask(
                    "load",
                    within=scale.warmup + scale.seconds + 40.0,
                    groups=mine,
                    in_flight=in_flight,
                    warmup=scale.warmup,
                    seconds=scale.seconds,
                    size=COMMAND_BYTES,
                )
                for place, mine in led.items()
            )
        )
        after = await _usage(nodes)
        if profile:
            await _print_profiles(nodes, list(led), profile)
        return await _sum_up(nodes, loads, after["cpu"] - before["cpu"])


async def _sum_up(nodes: Sequence[NodeProcess], loads: Sequence[dict[str, Any]], cpu: float) -> Result:
    acknowledged = sum(each["acknowledged"] for each in loads)
    latencies = merged([each["latencies"] for each in loads])
    result = Result(
        {
            "rate": sum(each["rate"] for each in loads),
            "p50": percentile(latencies, 0.5),
            "p99": percentile(latencies, 0.99),
            "cpu": cpu / max(acknowledged, 1),
        }
    )
    refused = sum(each["refused"] for each in loads)
    if refused or not acknowledged:
        reasons = [reason for each in loads for reason in each["refusals"]]
        result.problems.append(f"{refused} commands were not acknowledged: {'; '.join(reasons[:3])}")
    await _check_counts(nodes, acknowledged, exact=not refused, result=result)
    return result


async def _check_counts(
    nodes: Sequence[NodeProcess], acknowledged: int, *, exact: bool, result: Result
) -> None:
    """Every node applied every acknowledged command once; with refusals the unknown ones are open."""
    deadline = time.monotonic() + _CONVERGE_SECONDS
    while True:
        counts = [(await node.ask("counts"))["counts"] for node in nodes]
        totals = [sum(each) for each in counts]
        same = all(each == counts[0] for each in counts)
        if same and (totals[0] == acknowledged if exact else totals[0] >= acknowledged):
            return
        if time.monotonic() > deadline:
            result.problems.append(f"{acknowledged} commands were acknowledged, the nodes applied {totals}")
            return
        await asyncio.sleep(_POLL_SECONDS)


async def _usage(nodes: Sequence[NodeProcess]) -> dict[str, float]:
    """Summed processor seconds; the mean of resident bytes and threads; the time."""
    each = await asyncio.gather(*(node.ask("usage") for node in nodes))
    return {
        "cpu": sum(one["cpu"] for one in each),
        "rss": statistics.mean(node.resident_bytes() for node in nodes),
        "threads": statistics.mean(node.threads() for node in nodes),
        "at": time.monotonic(),
    }


async def _print_profiles(nodes: Sequence[NodeProcess], led: Sequence[int], lines: int) -> None:
    for place in (led[0], (led[0] + 1) % len(nodes)):
        answer = await nodes[place].ask("profile_end", lines=lines)
        role = "leader" if place in led else "follower"
        print(f"--- profile of a {role}, by own time\n{answer['profile'].strip()}\n", file=sys.stderr)


async def idle(system: System, folder: Path, scale: Scale) -> Result:
    """What groups cost that nobody uses: processor and memory of one node."""
    ours = isinstance(system, Strandline)
    groups = scale.idle_groups if ours else scale.stock_idle_groups
    async with cluster(system, folder / "one", 1) as nodes:
        await leaders(nodes, 1)
        base = await _usage(nodes)
    async with cluster(system, folder / "many", groups) as nodes:
        await leaders(nodes, groups)
        await _until_idle(nodes)
        before = await _usage(nodes)
        await asyncio.sleep(scale.idle_seconds)
        after = await _usage(nodes)
    cpu = (after["cpu"] - before["cpu"]) / (after["at"] - before["at"]) / len(nodes)
    memory = (after["rss"] - base["rss"]) / max(groups - 1, 1)
    factor = scale.idle_groups / groups
    result = Result(
        {"cpu": cpu * factor, "rss": base["rss"] + memory * (scale.idle_groups - 1), "each": memory}
    )
    if factor != 1:
        result.notes.append(
            f"{system.name} was measured with {groups} idle groups ({after['threads']:.0f} threads a node,"
            f" {cpu:.1%} of a core, {after['rss'] / 1e6:.0f} MB) and scaled to {scale.idle_groups}"
        )
    return result


async def _until_idle(nodes: Sequence[NodeProcess]) -> None:
    """Let what follows an election be over: no group needs the timer any more, where nodes can tell."""
    deadline = time.monotonic() + 30.0
    while any([(await node.ask("groups"))["active"] for node in nodes]):
        if time.monotonic() > deadline:
            active = [(await node.ask("groups"))["active"] for node in nodes]
            raise NodeFailed(f"of the groups that nobody uses {active} were still active after 30 s")
        await asyncio.sleep(_POLL_SECONDS)
    await asyncio.sleep(_SETTLE_SECONDS)


async def start(system: System, folder: Path, scale: Scale) -> Result:
    """From the start of three processes with empty folders to the first command applied."""
    async with cluster(system, folder, 1) as nodes:
        first = await _first_commit(nodes)
        began = min(node.started_at for node in nodes)
        ready = max(node.ready_at for node in nodes)
        return Result({"start": first - began, "commit": max(first - ready, 0.0)})


async def _first_commit(nodes: Sequence[NodeProcess], within: float = 60.0) -> float:
    asking = [asyncio.create_task(node.ask("first_commit", within=within, group=0)) for node in nodes]
    try:
        done, _ = await asyncio.wait(asking, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise NodeFailed(f"no command was applied within {within:g} s")
        answers = [task.result() for task in done]
        if not all(answer["applied"] for answer in answers):
            raise NodeFailed("the first command was refused")
        return float(min(answer["at"] for answer in answers))
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def recovery(system: System, folder: Path, scale: Scale) -> Result:
    """Opening a log that holds many entries, on a node alone, and serving again."""
    (node,) = system.make_nodes(folder, 1, (1,), raft={"snapshot_entries": 10**9, "snapshot_bytes": 10**12})
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "tests.programs.bench.fill_log",
        "ours" if isinstance(system, Strandline) else "stock", node.settings["folder"], str(scale.entries),
    )  # fmt: skip
    try:
        if await asyncio.wait_for(writer.wait(), 120.0):
            raise NodeFailed("the log could not be written")
    finally:
        if writer.returncode is None:
            writer.kill()
    async with running([node]):
        first = await _first_commit([node], within=120.0)
        result = Result(
            {
                "open": node.hello["opened_seconds"],
                "serving": first - node.started_at,
                "rss": node.resident_bytes(),
            }
        )
        applied = (await node.ask("counts"))["counts"]
        if applied != [scale.entries + 1]:
            result.problems.append(f"{scale.entries} entries were logged, {applied} commands applied")
        return result


async def snapshot(system: System, folder: Path, scale: Scale) -> Result:
    """A node that was away gets the whole state by snapshot."""
    nodes = system.make_nodes(folder, 1, (1, 2, 3), raft={"trailing_entries": 0})
    here, late = nodes[:2], nodes[2]
    try:
        async with running(here):
            await system.connect(nodes)
            (place,) = await leaders(here, 1)
            leader = here[place]
            await leader.ask("grow", within=60.0, group=0, size=scale.snapshot_bytes)
            await asyncio.sleep(_SETTLE_SECONDS)
            await leader.ask("stall")
            await leader.ask("snapshot", group=0)
            await _until(leader, "snapshotted", True, scale.snapshot_seconds)
            taking = await leader.ask("stall")
            await asyncio.sleep(_SETTLE_SECONDS)
            await leader.ask("stall")
            await late.start()
            began = time.monotonic()
            await system.connect(nodes)
            await _until(late, "ballast", scale.snapshot_bytes, scale.snapshot_seconds)
            took = time.monotonic() - began
            sending = await leader.ask("stall", within=30.0)
    finally:
        await late.kill()
    return Result(
        {
            "seconds": took,
            "rate": scale.snapshot_bytes / took,
            "stall": sending["seconds"],
            "taking_stall": taking["seconds"],
        }
    )


async def _until(node: NodeProcess, what: str, value: object, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        answer = await node.ask("holds", within=seconds, group=0)
        if answer[what] == value:
            return
        if time.monotonic() > deadline:
            raise NodeFailed(f"not done within {seconds:g} s ({what} is {answer[what]!r})")
        await asyncio.sleep(_POLL_SECONDS)


def empty(folder: Path) -> None:
    """Give the disk back what a measure used."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
