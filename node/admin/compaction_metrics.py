"""The samples about compaction, read where the parts that do the work keep their counts."""

from __future__ import annotations

from strandline.node.admin.exposition import Page, label
from strandline.node.admin.source import AdminSource


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
