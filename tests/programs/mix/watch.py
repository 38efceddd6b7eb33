"""What the nodes' metrics and the memory group tell, in the run and at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from strandline.cluster.admin_client import AdminClient

_SCRAPE_SECONDS: Final = 30.0
_WANTED: Final = (
    "strandline_raft_elections_total",
    "strandline_event_loop_lag_seconds",
    "strandline_event_loop_held_longest_seconds",
    "process_cpu_seconds_total",
)
LONG_SECONDS: Final = 0.2
"""A bound of the histogram of the loops' lag."""


@dataclass
class Told:
    """Of all nodes together, since their processes started."""

    elections: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By rank and cause."""
    long_lags: int = 0
    """How often a loop was more than LONG_SECONDS late."""
    lag_seconds: float = 0.0
    processor_seconds: float = 0.0
    held: dict[str, float] = field(default_factory=dict)
    """The longest that each part held up a loop in one go."""

    def since(self, before: Told) -> Told:
        """What came after `before`; the longest stay the longest of all time."""
        return Told(
            self.elections - before.elections,
            self.long_lags - before.long_lags,
            self.lag_seconds - before.lag_seconds,
            self.processor_seconds - before.processor_seconds,
            self.held,
        )

    def unwanted(self) -> dict[str, int]:
        """Elections without a fault, by rank."""
        found: Counter[str] = Counter()
        for (rank, cause), count in self.elections.items():
            if cause != "first":
                found[rank] += count
        return dict(found)


def told(addresses: Iterable[str]) -> Told:
    """Scrape these nodes. Raises Unreachable when one of them gives no answer."""
    found = Told()
    for address in addresses:
        page = str(AdminClient(address).request("GET", "/metrics", timeout=_SCRAPE_SECONDS).body)
        # A page has tens of thousands of lines, and this process is on the nodes' processors.
        wanted = "".join(line for line in page.splitlines(keepends=True) if line.startswith(_WANTED))
        for family in text_string_to_metric_families(wanted):
            for sample in family.samples:
                _add(found, sample.name, sample.labels, sample.value)
    return found


def _add(found: Told, name: str, labels: dict[str, str], value: float) -> None:
    match name:
        case "strandline_raft_elections_total":
            found.elections[labels["rank"], labels["cause"]] += round(value)
        case "strandline_event_loop_lag_seconds_count":
            found.long_lags += round(value)
        case "strandline_event_loop_lag_seconds_bucket" if labels["le"] == str(LONG_SECONDS):
            found.long_lags -= round(value)
        case "strandline_event_loop_lag_seconds_sum":
            found.lag_seconds += value
        case "process_cpu_seconds_total":
            found.processor_seconds += value
        case "strandline_event_loop_held_longest_seconds":
            found.held[labels["part"]] = max(value, found.held.get(labels["part"], 0.0))
