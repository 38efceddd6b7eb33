"""What the figures of `scripts/bench kafka` have to be, many of them by Kafka's in the same run.

A single run of a machine that others use is good to perhaps a third, so several are judged by the median of
what each of them showed.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.programs.bench.measures import Result, middle
from tests.programs.bench.report import shown

KAFKA, STRANDLINE = "kafka", "strandline"

Run = Mapping[str, Mapping[str, Result]]
"""What one run found: by system, and by the title of the case."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that a figure may be, or the least: so many times Kafka's, or a value in the figure's unit."""

    title: str
    what: str
    figure: str
    unit: str
    least: bool = False
    times: float | None = None
    value: float | None = None

    def told(self, run: Run) -> float | None:
        """The figure of a run, as it is judged; None where it, or what it is judged by, was not measured."""
        own = _figure(run, STRANDLINE, self)
        if self.times is None or own is None:
            return own
        kafka = _figure(run, KAFKA, self)
        return own / kafka if kafka else None

    def holds(self, told: float) -> bool:
        bound = self.times if self.value is None else self.value
        assert bound is not None
        return told >= bound if self.least else told <= bound

    def text(self, told: float) -> str:
        return shown(told, self.unit) if self.times is None else f"{told:.2f} x"

    @property
    def bound(self) -> str:
        side = "at least" if self.least else "at most"
        if self.value is not None:
            return f"{side} {shown(self.value, self.unit)}"
        return f"{side} {self.times:.3g} x Kafka's"


def _figure(run: Run, system: str, bound: Bound) -> float | None:
    result = run.get(system, {}).get(bound.title)
    return None if result is None else result.figures.get(bound.figure)


BOUNDS: tuple[Bound, ...] = (
    Bound("one at a time", "p50", "p50", "s", times=1.0),
    Bound("one at a time", "p99", "p99", "s", times=1 / 3),
    Bound("200 a second", "p50", "p50", "s", value=0.002),
    Bound("200 a second", "p99", "p99", "s", value=0.010),
    Bound("200 a second", "processor", "cpu", "core", times=0.5),
    Bound("produce to consume", "p50", "p50", "s", value=0.002),
    Bound("produce to consume", "p99", "p99", "s", value=0.015),
    Bound("produce to consume beside lifting", "p50", "p50", "s", value=0.002),
    Bound("produce to consume beside lifting", "p99", "p99", "s", value=0.015),
    Bound("transactions of 100 records", "one in flight", "rate", "/s", least=True, times=10.0),
    Bound("read far behind, 1 kB", "written before", "rate_written", "B/s", least=True, times=2.5),
    Bound("read far behind, 1 kB", "processor a GB written", "cpu_gb_written", "s", value=4.0),
    Bound("read far behind, 1 kB", "most memory meanwhile", "rss_written", "B", value=700e6),
    Bound("read far behind, 1 kB", "read", "rate", "B/s", least=True, times=1.0),
    Bound("read far behind, 1 kB", "processor a GB read", "cpu_gb", "s", value=1.0),
    Bound("read far behind, 1 kB", "read from the disk", "rate_disk", "B/s", least=True, times=1.0),
    Bound("read far behind, 1 kB", "processor a GB from the disk", "cpu_gb_disk", "s", value=1.0),
)
FULL_ONLY = ("produce to consume beside lifting", "read far behind, 1 kB")
"""Cases that are judged by 800 MB and 3 GB only: of less, a node's own caches hold a part."""


def verdicts(runs: Sequence[Run], *, full: bool) -> list[list[str]]:
    """Cells for each bound that was measured: title, figure, what is wanted, what is, and the word."""
    made, title = [], ""
    for bound in BOUNDS:
        told = [one for one in map(bound.told, runs) if one is not None]
        if not told or (bound.title in FULL_ONLY and not full):
            continue
        median = statistics.median(told)
        text = bound.text(median)
        if len(told) > 1:
            text += f" ({bound.text(min(told))} to {bound.text(max(told))})"
        word = "holds" if bound.holds(median) else "MISSED"
        made.append([bound.title if bound.title != title else "", bound.what, bound.bound, text, word])
        title = bound.title
    return made


def medians(runs: Sequence[Run], system: str) -> dict[str, Result]:
    """For each case the middle of what the runs showed of one system."""
    titles = dict.fromkeys(title for run in runs for title in run[system])
    return {title: middle([run[system][title] for run in runs if title in run[system]]) for title in titles}
