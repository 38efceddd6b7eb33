"""Schemas of the answers about programs of views, in OpenAPI 3.1."""

from __future__ import annotations

from typing import Final

from strandline.node.admin.schemas import INTEGER, TEXT, Schema, maybe, maybe_record, record, rows, value


def _version(what: str) -> Schema:
    return maybe_record(
        what,
        number=value("integer", "The version's number, from 1."),
        attempt=value("integer", "Log index of the entry that began it."),
        text=value("string", "The program."),
        views=rows(record(view=TEXT, topic=TEXT, sink=value("string", "Digest of its sink."))),
        inputs=rows(TEXT, "Topics that it reads."),
    )


PROGRAMS: Final = record(
    node=INTEGER,
    problem=maybe("string", "Why this node can run no program."),
    programs=rows(
        record(
            name=TEXT,
            created=value("integer", "Log index at which the program came about."),
            live=_version("The version that writes the views' topics; null: none yet."),
            next=_version("The version that is being filled; null: none."),
            pauses=value("integer", "Pauses of the live version so far, for cutovers."),
            stopped=maybe("string", "Why the live version does not go on."),
            ended=maybe("string", "Why the last attempt ended without a cutover."),
        )
    ),
    running=rows(
        record(
            program=TEXT,
            attempt=INTEGER,
            live=value("boolean", "Whether it runs the live version."),
            process=maybe("integer", "Its process id; null: it is about to start."),
            starts=value("integer", "Processes that were started for it here."),
            failures=value("integer", "Processes among those that ended although they were to run."),
            failure=maybe("string", "Why the last of those ended; null: none did."),
            lag=maybe("integer", "Decided records that it has not taken; null: not known here."),
            status={"type": "object", "description": "What the process said last."},
        ),
        "Versions that this node runs.",
    ),
)
_PROGRAM: Final = {"type": "string", "minLength": 1, "maxLength": 63}
APPLY_REQUEST: Final = {
    "type": "object",
    "required": ["program", "text", "views", "inputs"],
    "properties": {
        "program": _PROGRAM,
        "text": TEXT,
        "views": {
            "type": "array",
            "minItems": 1,
            "maxItems": 100,
            "items": {
                "type": "object",
                "required": ["view", "topic", "partitions", "sink"],
                "properties": {
                    "view": TEXT,
                    "topic": TEXT,
                    "partitions": {"type": "integer", "minimum": 1},
                    "sink": TEXT,
                },
            },
        },
        "inputs": {"type": "array", "items": TEXT},
    },
}
APPLIED: Final = record(
    program=TEXT, attempt=value("integer", "The attempt, or that of the live version if nothing changed.")
)
PROGRAM_REQUEST: Final = {
    "type": "object",
    "additionalProperties": False,
    "required": ["program"],
    "properties": {"program": _PROGRAM},
}
PROGRAM_STOPPED: Final = record(program=TEXT, version=value("integer", "Number of the version."))
PROGRAM_ENDED: Final = record(program=TEXT, topics=value("integer", "Topics that were deleted."))
