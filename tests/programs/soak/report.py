"""What a run showed: how much went through, what stayed, what it should have been, and every finding."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tests.programs.bench.report import shown, table
from tests.programs.failover.cluster.report import found, word_for
from tests.programs.soak.soak_report import SoakReport


@dataclass
class Report(SoakReport):
    """What a soak has shown."""

    storage: str = field(kw_only=True)
    acknowledged: int = 0
    acknowledged_bytes: int = 0
    followed_bytes: int = 0
    """Read by those at the end of the log."""
    begun_bytes: int = 0
    """Read by those that begin at its start."""
    renewals: int = 0
    """How often a topic was deleted and created again."""
    trims: int = 0
    """DeleteRecords that were answered."""
    checkpoints: int = 0
    """Taken under load, with a lease."""
    peak_level_zero_objects: int = 0
    peak_level_zero_bytes: int = 0
    peak_bytes: int = 0
    """Everything in the storage at one time."""
    peak_disk_bytes: int = 0
    """The whole folder: logs and objects."""
    peak_lag_epochs: int = 0
    """The cluster epoch less M, at the node that sees the smallest M."""
    drained_seconds: float | None = None
    """From the end of the load until level zero held no object."""
    level_zero_objects: int | None = None
    """At the end."""
    level_one_objects: int = 0
    level_one_bytes: int = 0
    named_objects: int = 0
    """That the partitions' leaders name."""
    named_bytes: int = 0
    retained_records: int = 0
    retained_bytes: int = 0
    """Values at or above the partitions' first offsets, as they were sent."""
    bound_bytes: int = 0
    """What level one may hold beyond the retained values."""
    checkpoint_documents: int = 0
    checkpoint_bytes: int = 0
    expected: int = 0
    """Records acknowledged and retained, all of which must be there."""
    read_back: int = 0
    lost: int = 0
    moved: int = 0
    doubled: int = 0
    audited: int = 0

    def failures(self) -> list[str]:
        """Why the run did not hold; empty when it did."""
        over = self.level_one_bytes - self.retained_bytes
        found = [
            (bool(self.lost), f"{self.lost} acknowledged and retained records were lost"),
            (bool(self.moved), f"{self.moved} records are not where they were said to be"),
            (bool(self.doubled), f"{self.doubled} records are there twice"),
            (self.drained_seconds is None, "level zero did not drain to nothing"),
            (bool(self.level_zero_objects), f"level zero holds {self.level_zero_objects} objects at the end"),
            (
                (self.level_one_objects, self.level_one_bytes) != (self.named_objects, self.named_bytes),
                f"level one holds {self.level_one_objects} objects of {self.level_one_bytes:,} B, and the "
                f"partitions name {self.named_objects} of {self.named_bytes:,} B",
            ),
            (
                over > self.bound_bytes,
                f"level one holds {over:,} B more than what retention keeps, above {self.bound_bytes:,}",
            ),
            (over < 0, f"level one holds {-over:,} B less than what retention keeps"),
            (not self.expected, "nothing was to be read back"),
            (not self.audited, "the audits did not all pass"),
        ]
        return [text for wrong, text in found if wrong] + self.findings


def show(report: Report) -> str:
    """The table, and one line that sums it up."""

    def amount(count: int) -> str:
        return f"{count:,}"

    def size(count: int) -> str:
        return shown(float(count), "B")

    rate = report.acknowledged_bytes / report.load_seconds if report.load_seconds else 0.0
    drained = "-" if report.drained_seconds is None else shown(report.drained_seconds, "s")
    over = report.level_one_bytes - report.retained_bytes
    cells = [
        ["load", "acknowledged", amount(report.acknowledged), size(report.acknowledged_bytes)],
        ["", "a second", "", shown(rate, "B/s")],
        ["", "read at the end of the log", "", size(report.followed_bytes)],
        ["", "read from its start", "", size(report.begun_bytes)],
        ["done to it", "kill -9", amount(report.kills), ""],
        ["", "topic deleted, created again", amount(report.renewals), ""],
        ["", "DeleteRecords", amount(report.trims), ""],
        ["", "checkpoints with a lease", amount(report.checkpoints), ""],
        [
            "at most",
            "level zero",
            amount(report.peak_level_zero_objects),
            size(report.peak_level_zero_bytes),
        ],
        ["", "all objects", "", size(report.peak_bytes)],
        ["", "folder on disk", "", size(report.peak_disk_bytes)],
        ["", "M behind the cluster epoch", f"{report.peak_lag_epochs:,} epochs", ""],
        ["quiet", "level zero empty after", drained, ""],
        ["", "level one", amount(report.level_one_objects), size(report.level_one_bytes)],
        ["", "named by partitions", amount(report.named_objects), size(report.named_bytes)],
        ["", "retained values", amount(report.retained_records), size(report.retained_bytes)],
        ["", "stored less retained", "", size(max(over, 0))],
        ["", "bound of that", "", size(report.bound_bytes)],
        ["", "checkpoints", amount(report.checkpoint_documents), size(report.checkpoint_bytes)],
        ["read back", "must be there", amount(report.expected), ""],
        ["", "read", amount(report.read_back), ""],
        ["", "lost, moved, doubled", f"{report.lost}, {report.moved}, {report.doubled}", ""],
        ["", "audits", "passed" if report.audited else "-", ""],
    ]
    lines = [table(["", "", "count", "bytes"], cells), ""]
    failures = report.failures()
    lines += found(failures, report.folder)
    lines.append(
        f"soak {word_for(failures)} {report.load_seconds:.0f} s of load on {report.storage}, "
        f"{report.kills} kills, {report.acknowledged:,} records acknowledged, "
        f"{report.expected:,} of them retained, {report.lost} lost, {report.seconds:.0f} s"
    )
    return "\n".join(lines)


def plain(report: Report) -> dict[str, Any]:
    """For JSON."""
    failures = report.failures()
    return {"ok": not failures, **asdict(report), "failures": failures}
