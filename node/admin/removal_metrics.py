"""The samples about removal, read where the parts that do the work keep their counts."""

from __future__ import annotations

from strandline.node.admin.exposition import Page, label
from strandline.node.admin.slices import Slices
from strandline.node.admin.source import AdminSource
from strandline.node.compaction.compaction_status import PartitionStatus


async def removal(page: Page, source: AdminSource, slices: Slices) -> None:
    """The reports, the leaders' entries, and each compacted partition that has a replica here."""
    reports, entries = source.reports.counters, source.removal.counters
    page.add("strandline_removal_reports_total", reports["rows"], label("direction", "sent"))
    page.add("strandline_removal_reports_total", reports["heard"], label("direction", "heard"))
    in_force = entries["in_force"]
    page.add("strandline_removal_entries_total", in_force, label("result", "in_force"))
    page.add("strandline_removal_entries_total", entries["proposed"] - in_force, label("result", "none"))
    status = source.compaction_status
    # Of one topic and number the newer group: a deleted topic's replica may be here for a moment longer.
    ordered = sorted(status.replicas().items())
    newest = {(hosted.replica.topic, hosted.replica.number): hosted for _, hosted in ordered}
    for hosted in newest.values():
        _partition(page, status.partition(hosted))
        await slices.breathe()


def _partition(page: Page, told: PartitionStatus) -> None:
    labels = f"{label('topic', told.topic)},{label('partition', told.partition)}"
    if told.local.clean_end is not None and told.local.log_end is not None:
        page.add("strandline_removal_clean_end", told.local.clean_end, labels)
        page.add("strandline_removal_log_end", told.local.log_end, labels)
    page.add("strandline_removal_log_bytes", told.local.bytes, labels)
    page.add("strandline_removal_holds", len(told.holds), labels)
    page.add("strandline_removal_mtro", told.mtro, labels)
    page.add("strandline_removal_mxro", told.mxro, labels)
    page.add("strandline_removal_ripe_tombstones", told.ripe_tombstones, labels)
    page.add("strandline_removal_ripe_markers", told.ripe_markers, labels)
    if told.leader is not None:
        held = told.leader.tombstones_held, told.leader.markers_held
        for what, by in zip(("tombstones", "markers"), held, strict=True):
            seconds = 0.0 if by is None else by.seconds
            page.add("strandline_removal_held_seconds", seconds, f"{labels},{label('records', what)}")
