"""Ways to do the same work in Spark, measured by turns, each in a process of its own that stays up meanwhile.

A machine's speed changes by a third within an hour, so two runs one after the other do not compare. In a turn
each way does the work once, within a minute or two of the others, and what is told of two ways is the median
of their ratios in each turn. Each turn begins with another way, and has new processes: so each has a first
time of its own.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

from tests.programs.bench.report import shown
from tests.programs.bench.spark_driver import START, Given, Taken

STAGE_SECONDS: Final = 900.0
"""Longest time of one stage of one way."""
_END_SECONDS: Final = 90.0
_TOLD: Final = 300
"""Characters of what a process said that went wrong: the last ones say it."""


class Broken(Exception):
    """A process that was to do the work ended, took too long, or did not do all of it: one line."""


class Driver:
    """A process of `spark_driver` whose session is there; it does a stage when it is asked to."""

    def __init__(self, job: str, given: Given, folder: Path, environment: Mapping[str, str]) -> None:
        """`folder` is the process's own; `environment` is added to this one's. Raises Broken."""
        self.given = given
        self._told = folder / "stderr"
        command = [sys.executable, "-m", "tests.programs.bench.spark_driver", job]
        with self._told.open("wb") as errors:
            self._process = subprocess.Popen(
                [*command, json.dumps(asdict(given)), str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **environment},
            )
        self.start = self._answer(START)

    def stage(self, name: str) -> Taken:
        """Do it, and return when it is done; raises Broken."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{name}\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._broken(name) from error
        return self._answer(name)

    def end(self) -> None:
        """End it; its Java is gone then, too."""
        try:
            self._process.communicate(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def _answer(self, name: str) -> Taken:
        assert self._process.stdout is not None
        # A line is an answer and an answer is a line, so nothing waits behind what was read.
        ready, _, _ = select.select([self._process.stdout], [], [], STAGE_SECONDS)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            raise self._broken(name)
        return Taken(**json.loads(line))

    def _broken(self, name: str) -> Broken:
        self._process.kill()
        self._process.communicate()
        told = " ".join(self._told.read_text(errors="replace").split())[-_TOLD:]
        return Broken(f"{name}: {told or f'no answer in {STAGE_SECONDS:g} s'}")


@dataclass(frozen=True)
class Measured:
    """What a stage of a job took in one way, in one turn. Times in seconds."""

    job: str
    """The job and the stage."""
    what: str
    """The size, in words."""
    way: str
    turn: int
    seconds: float
    spark: float
    servers: float
    memory: int
    records: int
    start: float | None = None
    """Of the session, if the stage was its first."""


@dataclass(frozen=True)
class Pair:
    """Two ways whose speeds are compared."""

    job: str
    ours: str
    theirs: str
    wanted: float | None = None
    """How many times as fast one is to be as the other."""


def _by_turn(measured: Sequence[Measured], job: str, what: str, way: str) -> dict[int, Measured]:
    return {one.turn: one for one in measured if (one.job, one.what, one.way) == (job, what, way)}


HEADER: Final = (
    "", "", "records", "median", "turns", "start", "processor", "servers'", "largest process",
)  # fmt: skip


def cells(measured: Sequence[Measured]) -> Iterator[list[str]]:
    """The rows of the table: medians of the turns."""
    before = ""
    for job, what, way in dict.fromkeys((one.job, one.what, one.way) for one in measured):
        turns = list(_by_turn(measured, job, what, way).values())
        seconds = [one.seconds for one in turns]
        starts = [one.start for one in turns if one.start is not None]
        yield [
            job if job != before else "",
            f"{what}, {way}",
            shown(turns[0].records / median(seconds), "/s"),
            shown(median(seconds), "s"),
            f"{min(seconds):.1f} to {max(seconds):.1f} s",
            shown(median(starts) if starts else None, "s"),
            shown(median(one.spark for one in turns), "s"),
            shown(median(one.servers for one in turns), "s"),
            shown(max(one.memory for one in turns), "B"),
        ]
        before = job


def ratios(measured: Sequence[Measured], pairs: Sequence[Pair]) -> Iterator[str]:
    """How the ways compare: the median of the turns' ratios, with the least and the largest."""
    for pair in pairs:
        for what in dict.fromkeys(one.what for one in measured if one.job == pair.job):
            ours = _by_turn(measured, pair.job, what, pair.ours)
            theirs = _by_turn(measured, pair.job, what, pair.theirs)
            times = [theirs[turn].seconds / ours[turn].seconds for turn in ours if turn in theirs]
            if times:
                told = f"{pair.job}, {what}: {pair.ours} is {_spread(times)} times as fast as {pair.theirs}"
                if pair.wanted is not None:
                    met = "holds" if median(times) >= pair.wanted else "MISSED"
                    told += f", wanted {pair.wanted:g}: {met}"
                yield told


def firsts(measured: Sequence[Measured], first: str, again: str, most: float) -> Iterator[str]:
    """How many times as long as again the first time took, by way, and whether that is at most `most`."""
    for what, way in dict.fromkeys((one.what, one.way) for one in measured if one.job == first):
        before, after = (_by_turn(measured, job, what, way) for job in (first, again))
        times = [before[turn].seconds / after[turn].seconds for turn in before if turn in after]
        if times:
            met = "holds" if median(times) <= most else "MISSED"
            told = f"{first}, {what}: {way} takes {_spread(times)} times as long as again"
            yield f"{told}, {most:g} at most: {met}"


def _spread(times: Sequence[float]) -> str:
    return f"{median(times):.1f} ({min(times):.1f} to {max(times):.1f})"
