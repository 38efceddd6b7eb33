"""Schemas of the answers about compaction, in OpenAPI 3.1."""

from __future__ import annotations

from typing import Final

from strandline.node.admin.schemas import (
    INTEGER,
    TEXT,
    Schema,
    mapping,
    maybe,
    maybe_record,
    record,
    rows,
    value,
)

COMPACTION: Final = record(
    node=value("integer", "The node that answers."),
    logs=value("integer", "Local logs of compacted replicas on this node."),
    resets=mapping(INTEGER, "How often a local log was begun anew since the process started, by cause."),
    entries=record(
        proposed=value("integer", "Entries that advance removal, of partitions led here."),
        in_force=value("integer", "Those of them that are known to be applied."),
    ),
    clock_trusted=value(
        "boolean", "Whether a majority of nodes agrees on the time; otherwise nothing is proposed."
    ),
    failing_count=value("integer", "Local logs that cannot be opened, filled or cleaned."),
    failing=rows(
        record(topic=TEXT, partition=INTEGER, problem=value("string", "Why.")), "The first of these logs."
    ),
)


def _held(what: str) -> Schema:
    return maybe_record(
        f"The copies that hold back the removal of {what}; null: all are equally far.",
        nodes=rows(INTEGER, "Replicas, by their nodes."),
        level_one=value("boolean", "Whether level one is one of them."),
        seconds=value("number", "For how long these copies have, as this leader saw it."),
    )


COMPACTED_PARTITION: Final = record(
    group=value("integer", "Its Raft group."),
    topic=TEXT,
    partition=INTEGER,
    local=record(
        start_offset=maybe("integer", "Where the local log begins; null while it is not open."),
        clean_end=maybe("integer", "Below it the local log is clean."),
        log_end=maybe("integer", "Where it ends; all of it is settled."),
        mcco=maybe("integer", "Maximum cleanly compacted offset of the replica here; null: it reports none."),
        mxfo=maybe("integer", "Maximum transaction-free offset of the replica here; null: it reports none."),
        segments=value("integer", "Files of the local log."),
        bytes=value("integer", "Of these files."),
        resets=value("integer", "How often it was begun since the process started, the first time included."),
        reset_for=maybe("string", "Why it was the last time, or is going to be."),
        problem=maybe("string", "What keeps it from being opened, filled or cleaned."),
    ),
    mtro=value("integer", "Maximum tombstone removal offset: all copies are clean below it."),
    mxro=value("integer", "Maximum transaction removal offset: all copies are settled below it."),
    ripe_tombstones=value("integer", "Below it tombstones may go: they waited for delete.retention.ms."),
    ripe_markers=value("integer", "Below it markers may go."),
    waiting_removals=value("integer", "Rises of the two that are not ripe yet."),
    ripens_at_ms=value("integer", "When the first of them ripens, in the partition's time; -1: none waits."),
    leader=maybe_record(
        "What the leader knows; null: this node does not lead.",
        term=value("integer", "Its term."),
        copies=rows(
            record(
                node=maybe("integer", "Node of the replica; null for level one."),
                voter=value("boolean", "Whether it votes; false for a learner and for level one."),
                mcco=maybe("integer", "Null: no report has come on the present connection."),
                mxfo=maybe("integer", "Null: no report has come on the present connection."),
            ),
            "All copies: level one, then the members of the newest configuration.",
        ),
        tombstones_held=_held("tombstones"),
        markers_held=_held("markers"),
        error=maybe("string", "Why the last entry had no effect that is known."),
        publication_error=maybe("string", "Why the last publication of level one failed."),
    ),
)
