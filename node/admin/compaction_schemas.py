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
    resets=mapping(INTEGER, "Number of local logs rebuilt since the process started, by cause."),
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
    under_way=rows(
        record(
            topic=TEXT,
            partition=INTEGER,
            work=value("string", "keep (opened, rebuilt or trimmed), fill, clean or publish."),
            seconds=value("number", "For how long."),
        ),
        "Work on local logs that has begun and not ended.",
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
        resets=value(
            "integer",
            "Number of times that it was rebuilt since the process started, as it was damaged or behind.",
        ),
        reset_for=maybe("string", "Why it was the last time, or is going to be; null: it was not."),
        reset_seconds=maybe("number", "For how long that is known."),
        problem=maybe("string", "What keeps it from being opened, filled or cleaned."),
    ),
    due=value(
        "boolean",
        "Whether the local log is to be filled or cleaned by the topic's settings; otherwise what it holds"
        " back waits for further records.",
    ),
    mtro=value("integer", "Maximum tombstone removal offset: all copies are clean below it."),
    mxro=value("integer", "Maximum transaction removal offset: all copies are settled below it."),
    ripe_tombstones=value("integer", "Below it tombstones may go: they waited for delete.retention.ms."),
    ripe_markers=value("integer", "Below it markers may go."),
    waiting_removals=value("integer", "Rises of the two that are not ripe yet."),
    ripens_at_ms=value("integer", "When the first of them ripens, in the partition's time; -1: none waits."),
    holds=rows(
        record(
            reader=value("string", "The reader's name."),
            offset=value("integer", "From here on nothing is cleaned."),
            until_ms=value("integer", "When it runs out unless it is renewed, in the partition's time."),
        ),
        "Readers that hold records against cleaning.",
    ),
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
        open_transaction=maybe_record(
            "The earliest open transaction: from its first offset on nothing is filled; null: none.",
            producer_id=INTEGER,
            first_offset=INTEGER,
            seconds=value("number", "For how long this leader has seen it."),
        ),
        error=maybe("string", "Why the last entry had no effect that is known."),
        lifting_error=maybe("string", "Why records do not come into level one, from which logs are filled."),
        publication_error=maybe("string", "Why the last publication of level one failed."),
    ),
)

_READER: Final = {"type": "string", "minLength": 1, "maxLength": 249}
_LEASE_SECONDS: Final = {"type": "number", "minimum": 1, "maximum": 604800, "default": 3600}

HOLD_REQUEST: Final = {
    "type": "object",
    "additionalProperties": False,
    "required": ["topic", "reader"],
    "properties": {
        "topic": TEXT,
        "reader": _READER,
        "offsets": {
            "type": ["object", "null"],
            "description": "By partition, the offset to hold from; null: where it is held, or from the last "
            "stable offset. Without this, all partitions are held so.",
            "additionalProperties": {"type": ["integer", "null"], "minimum": 0},
        },
        "lease_seconds": _LEASE_SECONDS,
    },
}

RELEASE_REQUEST: Final = {
    "type": "object",
    "additionalProperties": False,
    "required": ["topic", "reader"],
    "properties": {"topic": TEXT, "reader": _READER},
}

HOLDS: Final = record(
    complete=value("boolean", "Whether every partition was held, or released, as was asked."),
    topic=TEXT,
    reader=TEXT,
    partitions=rows(
        record(
            partition=INTEGER,
            offset=maybe("integer", "Held from here on; null: not held."),
            until_ms=maybe("integer", "When the hold runs out, in the partition's time."),
            lowest=maybe("integer", "Not null: below it records may be gone, so what was asked for is lost."),
            error=maybe("string", "Why this partition did not answer as it should."),
        )
    ),
)
