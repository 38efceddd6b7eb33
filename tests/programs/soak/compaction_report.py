"""What a soak of compaction has shown, and why it did not hold."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tests.programs.failover.cluster.nodes import NODES
from tests.programs.soak.compaction_load import PARTITIONS
from tests.programs.soak.soak_report import SoakReport


@dataclass
class Report(SoakReport):
    """What a soak of a compacted table has shown."""

    kills_due: int = 0
    """So many intervals between kills the load was to last for."""
    written: int = 0
    """Records, those of aborted transactions not counted."""
    committed: int = 0
    aborted: int = 0
    aborted_records: int = 0
    """Of these transactions, acknowledged before the abort: they were in the log."""
    doubtful: int = 0
    """Transactions whose end was not known; their keys were written again."""
    written_bytes: int = 0
    """Of keys and values that were acknowledged, those of aborted transactions too."""
    offsets: int = 0
    """Of both partitions, markers and aborted records included."""
    live_keys: int = 0
    tombstones: int = 0
    """Acknowledged, those of aborted transactions not counted."""
    deleted_keys: int = 0
    """Keys whose last record is a tombstone."""
    removed_tombstones: int = 0
    """Of those; in the one of all nodes' local logs together that has removed fewest."""
    ripe_tombstones: list[int] = field(default_factory=list)
    """By partition, the offset below which tombstones may go, at the end."""
    settled_seconds: float | None = None
    """From the end of the load until nothing was left to be cleaned."""
    led: int = 0
    """Pairs of a partition and a node that led it while it was read from 0, with both isolation levels."""
    local_logs: int = 0
    """Local logs whose files were read and compared."""
    level_one: int = 0
    """Partitions whose level-one objects were read and compared."""
    level_one_aborted: int = 0
    """Aborted records that level one has still stored, above what is settled there."""
    spark: int = 0
    """Partitions that the Spark source read and that were compared."""
    local_bytes: int = 0
    """Of the largest local log."""
    local_bound: int = 0
    level_one_bytes: int = 0
    level_one_bound: int = 0
    audited: bool = False

    def failures(self, *, audits: bool = True, bounds: bool = True) -> list[str]:
        """Why the run did not hold; empty when it did. A run of seconds cannot show that `bounds` hold."""
        wanted = PARTITIONS * len(NODES)
        found = [
            (2 * self.kills < self.kills_due, f"{self.kills} kills in a time for {self.kills_due}"),
            (self.settled_seconds is None, "the local logs, or what may be removed, did not come to rest"),
            (not self.live_keys, "the table is empty"),
            (not self.aborted, "no transaction was aborted"),
            (not self.aborted_records, "no aborted record is known to have been in the log"),
            (
                self.level_one_aborted >= max(self.aborted_records, 1),
                "level one has every aborted record still: none was cleaned",
            ),
            (not any(self.ripe_tombstones), "no tombstone ripened"),
            (not self.removed_tombstones, "a node has the tombstones of all deleted keys still"),
            (self.led < wanted, f"{self.led} of {wanted} pairs of partition and leader were read"),
            (self.local_logs < wanted, f"{self.local_logs} of {wanted} local logs were compared"),
            (
                self.level_one < PARTITIONS,
                f"{self.level_one} of {PARTITIONS} partitions of level one were compared",
            ),
            (
                self.local_bytes > self.local_bound,
                f"a local log has {self.local_bytes:,} B, above {self.local_bound:,}",
            ),
            (
                self.level_one_bytes > self.level_one_bound,
                f"level one has {self.level_one_bytes:,} B, above {self.level_one_bound:,}",
            ),
            (
                bounds and self.written_bytes <= self.level_one_bound,
                f"{self.written_bytes:,} B were written, below the bound of level one: a log that is never"
                " cleaned would hold it, so load it for longer",
            ),
            (audits and not self.audited, "the audits did not all pass"),
            (audits and self.spark < PARTITIONS, f"Spark read {self.spark} of {PARTITIONS} partitions"),
        ]
        return [text for wrong, text in found if wrong] + self.findings


def show(report: Report, failures: list[str]) -> str:
    """Lines for a person."""
    facts = {name: value for name, value in asdict(report).items() if name not in ("findings", "folder")}
    lines = [f"{name.replace('_', ' '):<20}{_shown(value)}" for name, value in facts.items()]
    lines += [f"- FAILED: {failure}" for failure in failures]
    if report.folder is not None:
        lines.append(f"- kept: {report.folder}")
    lines.append(
        f"compaction soak {'failed' if failures else 'ok'}: {report.load_seconds:.0f} s of load,"
        f" {report.kills} kills, {report.written:,} records written, {report.live_keys:,} keys left,"
        f" {report.led} leaders read, {report.local_logs} local logs, {report.level_one} partitions of level"
        f" one and {report.spark} of Spark compared, {report.seconds:.0f} s"
    )
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return (
        f"{value:,.1f}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else f"{value}"
    )
