"""The samples about level one and about garbage, read where the parts that do the work keep their counts."""

from __future__ import annotations

from strandline.node.admin.exposition import Page, label
from strandline.node.admin.replica_sources import PartitionSource
from strandline.node.admin.source import AdminSource
from strandline.node.runtime.slices import Slices


def level_one(page: Page, source: AdminSource) -> None:
    """This node's work for level one: reconciling, merging, retention, sweeping."""
    measures = source.level_one.measures
    page.add("strandline_level_one_jobs_total", measures.jobs)
    for origin, objects, size in (
        ("level_zero", measures.reconciled_objects, measures.reconciled_bytes),
        ("level_one", measures.merges, measures.merged_bytes),
    ):
        page.add("strandline_level_one_objects_total", objects, label("from", origin))
        page.add("strandline_level_one_written_bytes_total", size, label("from", origin))
    page.add("strandline_level_one_merged_objects_total", measures.merged_objects)
    page.add("strandline_level_one_failed_builds_total", measures.failed_builds)
    page.add("strandline_level_one_results_total", measures.refused, label("result", "refused"))
    page.add("strandline_level_one_results_total", measures.undecided, label("result", "undecided"))
    page.add_histogram("strandline_level_one_job_seconds", measures.job_seconds)
    deleted = {"removed": measures.removed_deleted, "orphan": measures.orphans_deleted}
    for reason, count in deleted.items():
        page.add("strandline_level_one_deleted_objects_total", count, label("reason", reason))
    page.add("strandline_level_one_deleted_bytes_total", measures.removed_bytes)
    page.add("strandline_level_one_sweeps_total", measures.sweeps)
    page.add("strandline_level_one_lists_total", measures.lists)
    page.add("strandline_level_one_foreign_names_total", measures.foreign_names)
    page.add("strandline_level_one_errors_total", measures.store_errors)
    builder, reader = source.level_one_builder.measures, source.level_one_reader.measures
    page.add("strandline_level_one_builder_gets_total", builder.gets)
    page.add("strandline_level_one_builder_puts_total", builder.puts)
    page.add("strandline_level_one_builder_read_bytes_total", builder.bytes_read)
    page.add("strandline_level_one_builder_cpu_seconds_total", builder.cpu_seconds)
    page.add("strandline_level_one_builder_starts_total", builder.starts)
    page.add("strandline_level_one_reader_gets_total", reader.gets)
    page.add("strandline_level_one_reader_failed_gets_total", reader.failed)
    page.add("strandline_level_one_reader_read_bytes_total", reader.bytes_read)
    page.add("strandline_level_one_reader_checked_bytes_total", reader.bytes_checked)
    page.add("strandline_level_one_reader_given_bytes_total", reader.bytes_given)
    page.add("strandline_level_one_reader_bad_total", reader.bad)
    page.add_histogram("strandline_level_one_reader_get_seconds", reader.get_seconds)
    page.add("strandline_retention_moves_total", measures.retention_moves)
    page.add("strandline_retention_records_total", measures.retention_records)


async def collection(page: Page, source: AdminSource, slices: Slices) -> None:
    """Stored bytes that partitions led here refer to, and the collector's progress."""
    collector, clock = source.collector, source.clock.estimate()
    measures = collector.measures
    await _held(page, source, slices)
    page.add("strandline_collector_max_collectable_epoch", source.collectable.maximum().epoch)
    page.add("strandline_collector_bound_epoch", collector.bound)
    page.add("strandline_collector_lag_epochs", collector.lag_epochs)
    page.add("strandline_collector_lag_seconds", collector.lag_seconds)
    page.add("strandline_collector_paused", int(collector.paused))
    page.add("strandline_collector_broken", int(collector.broken is not None))
    page.add("strandline_collector_sweeps_total", measures.sweeps)
    page.add("strandline_collector_lists_total", measures.lists)
    page.add("strandline_collector_listed_objects_total", measures.listed)
    page.add("strandline_collector_deleted_objects_total", measures.deleted)
    page.add("strandline_collector_foreign_names", measures.foreign)
    page.add("strandline_collector_errors_total", measures.errors)
    page.add("strandline_gone_topics_deleted_objects_total", source.gone_topics.deleted)
    page.add("strandline_clock_trusted", int(clock.trusted))
    page.add("strandline_clock_offset_seconds", clock.offset_ms / 1000)
    await slices.breathe()


async def _held(page: Page, source: AdminSource, slices: Slices) -> None:
    """Of the partitions led here, so that the sum over all nodes is what the cluster refers to."""
    zero_bytes = one_objects = one_bytes = removed_objects = removed_bytes = 0
    for partition in list(source.partitions):
        if partition.leads:
            machine = partition.machine
            zero_bytes += machine.extents.bytes
            one_objects += len(machine.level_one)
            one_bytes += machine.level_one.bytes
            removed_objects += len(machine.removed)
            removed_bytes += sum(removed.size for removed in machine.removed)
            await slices.breathe()
    objects = {"level_one": one_objects, "removed": removed_objects}
    sizes = {"level_zero": zero_bytes, "level_one": one_bytes, "removed": removed_bytes}
    for state, count in objects.items():
        page.add("strandline_storage_objects", count, label("state", state))
    for state, size in sizes.items():
        page.add("strandline_storage_bytes", size, label("state", state))


def partition(page: Page, replica: PartitionSource, labels: str) -> None:
    """Location of one partition's records."""
    machine = replica.machine
    page.add("strandline_partition_last_reconciled_offset", machine.last_reconciled_offset, labels)
    page.add("strandline_partition_extents", len(machine.extents), labels)
    page.add("strandline_partition_level_zero_bytes", machine.extents.bytes, labels)
    page.add("strandline_partition_level_one_objects", len(machine.level_one), labels)
    page.add("strandline_partition_level_one_bytes", machine.level_one.bytes, labels)
