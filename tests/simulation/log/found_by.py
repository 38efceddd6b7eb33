"""The checks that each sabotage violates: a finding of any other check is not the sabotage's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FOUND_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "ack-before-sync": ("durable quorum",),
    "vote-before-sync": ("durable term",),
    "counts-itself-before-sync": ("durable quorum",),
    "vote-not-recorded": ("durable vote",),
    "term-not-recorded": ("durable vote",),
    "truncation-not-recorded": ("recovery",),
    "failed-sync-ignored": (
        "recovery",
        "durable acknowledgement",
    ),
    "truncates-after-previous": (
        "durable quorum",
        "deleted without conflict",
    ),
    "commits-to-own-end": ("state machine safety",),
    "acks-own-end": ("state machine safety",),
    "replies-across-terms": ("elected by a majority",),
    "stale-leader-unanswered": ("replicas converge",),
    "next-moves-back": ("sent once",),
    "commits-on-heartbeat": ("calm commits",),
    "no-own-term-rule": ("own term committed",),
    "votes-not-voters": ("elected by a majority",),
    "votes-twice": ("one vote a term",),
    "ignores-older-logs": ("leader completeness",),
    "no-pre-vote": ("a healthy leader stays",),
    "no-stickiness": (
        "a healthy leader stays",
        "leases",
    ),
    "votes-in-told-terms": ("leases",),
    "pre-votes-of-any-round": ("a healthy leader stays",),
    "heartbeat-forgotten": ("leases",),
    "votes-after-restart": (
        "leases",
        "linearizability",
    ),
    "no-check-quorum": ("check quorum",),
    "lease-from-receive-time": ("linearizability",),
    "reads-unconfirmed": ("linearizability",),
    "reads-before-own-term": ("linearizability",),
    "pending-never-ends": ("every command ends",),
    "applies-again": ("applied twice",),
    "transfer-by-ordinary-vote": ("transfer",),
    "transfer-with-pending": ("transfer",),
    "lease-kept-in-transfer": (
        "linearizability",
        "leases",
    ),
    "two-changes-at-once": ("one change at a time",),
    "configuration-when-applied": ("newest configuration",),
    "snapshot-of-current-members": (
        "equal snapshots",
        "members of a snapshot",
    ),
    "voter-before-catch-up": ("catch-up first",),
    "log-cleared-on-open": ("recovery",),
    "older-snapshot-installed": ("state machine safety",),
    "suffix-dropped": ("deleted without conflict",),
    "suffix-kept": ("replicas converge",),
    "damaged-snapshot-swallowed": (
        "equal snapshots",
        "state machine safety",
    ),
    "snapshot-not-synced": ("serves again",),
    "any-folder": ("leader completeness",),
    "folders-in-memory": ("leader completeness",),
    "segment-dropped-with-vote": ("durable vote",),
    "heartbeat-digest-ignored": (
        "idle groups elect",
        "leases",
    ),
    "silence-unnoticed": ("serves again",),
    "records-while-full": ("a full disk costs no memory",),
    "terms-while-full": ("a full disk costs no memory",),
    "answers-while-full": ("a full disk costs no memory",),
    "quiet-leader-while-full": ("a full node leads nothing",),
    "stopped-keeps-log": ("a stopped replica does not keep the log",),
}
