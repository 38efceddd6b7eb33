"""The samples about compaction and removal, read where the parts that do the work keep their counts."""

from __future__ import annotations

from strandline.node.admin.exposition import Page, label
from strandline.node.admin.source import AdminSource
from strandline.node.compaction.compaction_status import PartitionStatus
from strandline.node.runtime.slices import Slices


def compaction(page: Page, source: AdminSource) -> None:
    """This node's local logs, and the work for them."""
    measures, worker = source.compaction.measures, source.compactor.measures
    page.add("strandline_compaction_ingests_total", measures.ingests)
    page.add("strandline_compaction_rounds_total", measures.rounds)
    for work, read, written in (
        ("ingest", measures.ingested_bytes, measures.ingest_written_bytes),
        ("clean", measures.cleaned_read_bytes, measures.cleaned_written_bytes),
    ):
        page.add("strandline_compaction_read_bytes_total", read, label("work", work))
        page.add("strandline_compaction_written_bytes_total", written, label("work", work))
    page.add("strandline_compaction_written_bytes_total", measures.published_bytes, label("work", "publish"))
    page.add("strandline_compaction_publications_total", measures.publications)
    for outcome, objects in (("replaced", measures.published_objects), ("kept", measures.kept_objects)):
        page.add("strandline_compaction_published_objects_total", objects, label("outcome", outcome))
    page.add("strandline_compaction_local_reads_total", measures.local_reads)
    page.add("strandline_compaction_local_read_bytes_total", measures.local_read_bytes)
    page.add("strandline_compaction_bad_reads_total", measures.bad_reads)
    page.add("strandline_compaction_removed_records_total", measures.removed_records)
    for reason, count in measures.resets.items():
        page.add("strandline_compaction_resets_total", count, label("reason", reason.value))
    page.add("strandline_compaction_failed_jobs_total", measures.failed)
    page.add("strandline_compaction_abandoned_jobs_total", measures.abandoned)
    page.add_histogram("strandline_compaction_step_seconds", measures.step_seconds)
    for state, count in source.compaction.states().items():
        page.add("strandline_compaction_logs", count, label("state", state))
    for work, seconds in worker.cpu_seconds.items():
        page.add("strandline_compaction_worker_cpu_seconds_total", seconds, label("work", work))
    page.add("strandline_compaction_worker_starts_total", worker.starts)


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
