"""The samples about batches in the log itself, read where their budget keeps its counts."""

from __future__ import annotations

from strandline.node.admin.exposition import Page, label
from strandline.node.admin.replica_sources import PartitionSource
from strandline.node.admin.source import AdminSource
from strandline.node.partition.inline_budget import Switch


def inline(page: Page, source: AdminSource) -> None:
    """This node's budget, and what became of the batches."""
    budget = source.inline_budget
    measures = budget.measures
    page.add("strandline_inline_batches_total", measures.batches)
    page.add("strandline_inline_bytes_total", measures.bytes)
    page.add("strandline_inline_refused_batches_total", measures.to_objects)
    for way in Switch:
        page.add("strandline_inline_switches_total", measures.switches[way], label("to", way.value))
    page.add("strandline_inline_stored_batches_total", measures.stored_batches)
    page.add("strandline_inline_stored_bytes_total", measures.stored_bytes)
    page.add("strandline_inline_failed_stores_total", measures.failed_stores)
    page.add("strandline_inline_snapshots_total", measures.snapshots)
    page.add("strandline_inline_kept_bytes", budget.kept)
    page.add("strandline_inline_kept_limit_bytes", budget.config.bytes)


def partition(page: Page, source: AdminSource, replica: PartitionSource, labels: str) -> None:
    """The batches of one partition that lie in the nodes' logs alone."""
    page.add("strandline_partition_inline_bytes", replica.machine.extents.inline_bytes, labels)
    page.add("strandline_partition_inline_seconds", source.inline_storing.age(replica.group.id), labels)
