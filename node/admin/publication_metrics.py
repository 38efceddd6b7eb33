"""The samples about what is published to the storage: checkpoints, and tails between them."""

from __future__ import annotations

from strandline.node.admin.exposition import Page, label
from strandline.node.admin.source import AdminSource


def published(page: Page, source: AdminSource) -> None:
    """Documents and tails that this node has published, and those that wait."""
    measures, local = source.publisher.measures, source.local_documents.measures
    documents = {
        ("state", "published"): measures.documents_published,
        ("state", "dropped"): measures.documents_dropped,
        ("log", "published"): measures.logs_published,
        ("log", "dropped"): measures.logs_dropped,
        ("local", "published"): local.published,
        ("local", "dropped"): local.dropped,
    }
    for (kind, result), count in documents.items():
        which = f"{label('kind', kind)},{label('result', result)}"
        page.add("strandline_checkpoint_documents_total", count, which)
    page.add("strandline_checkpoint_published_bytes_total", measures.bytes_published)
    page.add("strandline_checkpoint_failed_puts_total", measures.failed_puts)
    page.add("strandline_checkpoint_waiting", measures.waiting)
    page.add("strandline_checkpoint_waiting_bytes", measures.waiting_bytes)
    tails = source.tails
    page.add("strandline_tails_published_total", tails.measures.published)
    page.add("strandline_tails_published_bytes_total", tails.measures.published_bytes)
    page.add("strandline_tail_states_total", tails.measures.states)
    page.add("strandline_tail_waiting_bytes", tails.waiting_bytes)
    if tails.age is not None:
        page.add("strandline_tail_age_seconds", tails.age)
    points = source.tail_points
    page.add("strandline_tail_points_total", points.measures.taken, label("result", "taken"))
    page.add("strandline_tail_points_total", points.measures.missed, label("result", "missed"))
    if points.age is not None:
        page.add("strandline_tail_point_age_seconds", points.age)
