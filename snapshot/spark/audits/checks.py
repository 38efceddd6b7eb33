"""All audits, in the order of the report."""

from __future__ import annotations

from strandline.snapshot.spark.audits.audit import Audit
from strandline.snapshot.spark.audits.batch_audits import (
    offsets_contiguous,
    producer_sequences,
    references_exist_and_crc,
)
from strandline.snapshot.spark.audits.collection_audits import (
    collectable_epochs_monotone,
    nothing_collectable_left,
    nothing_deleted_above_m,
)
from strandline.snapshot.spark.audits.compaction_audits import (
    latest_value_survives,
    level_one_is_clean,
    local_logs_agree,
    nothing_resurrected,
    removal_offsets_monotone,
    tombstones_kept,
)
from strandline.snapshot.spark.audits.document_audits import (
    epochs_never_regress,
    no_window,
    replay,
    replicas_agree,
)
from strandline.snapshot.spark.audits.isolation_audits import (
    aborted_index_equals_replay,
    last_stable_offset_is_right,
    rows_match_markers,
)
from strandline.snapshot.spark.audits.levels import level_one_holds_level_zero
from strandline.snapshot.spark.audits.transaction_audits import (
    every_marker_has_its_transaction,
    transactions_are_whole,
)

AUDITS = (
    Audit(
        "replicas_agree",
        "Did all replicas publish the same bytes at each checkpoint?",
        replicas_agree,
        ("documents", "checkpoints", "missing documents"),
    ),
    Audit(
        "no_window",
        "Is no leader's epoch window part of any state?",
        no_window,
        ("documents",),
    ),
    Audit(
        "epochs_never_regress",
        "Do epochs and terms only go up, in their order?",
        epochs_never_regress,
        ("groups", "checkpoints"),
    ),
    Audit(
        "references_exist_and_crc",
        "Is every batch that is referred to there, intact, and what its extent says?",
        references_exist_and_crc,
        ("batches", "objects", "level-one objects", "inline batches", "bytes", "objects proven before"),
        ("batches",),
    ),
    Audit(
        "offsets_contiguous",
        "Are there batches for every offset from start to high watermark?",
        offsets_contiguous,
        ("partitions", "records"),
        ("partitions", "references", "batches"),
    ),
    Audit(
        "producer_sequences",
        "Has no producer a missing or a doubled sequence?",
        producer_sequences,
        ("batches", "batches of producers", "producers", "unreadable batches"),
        ("batches",),
    ),
    Audit(
        "replay",
        "Does each checkpoint with the log after it give the next one?",
        replay,
        ("checkpoints", "replayed", "agree", "not covered", "entries"),
    ),
    Audit(
        "collectable_epochs_monotone",
        "Do M, each partition's M(p), and its offsets only grow?",
        collectable_epochs_monotone,
        ("partitions", "checkpoints", "rounds", "M"),
    ),
    Audit(
        "nothing_deleted_above_m",
        "Is every level-zero object above M there that a log or a checkpoint names?",
        nothing_deleted_above_m,
        ("objects above M", "named objects", "collected"),
        ("written", "batches"),
    ),
    Audit(
        "nothing_collectable_left",
        "Is everything gone that may be collected, on both levels, beyond the grace?",
        nothing_collectable_left,
        (
            "judged objects",
            "level-zero objects",
            "level-one objects",
            "undecided",
            "foreign names",
            "collectable epoch",
        ),
    ),
    Audit(
        "level_one_holds_level_zero",
        "Does level one hold the very records that level zero held?",
        level_one_holds_level_zero,
        ("records compared", "level-one objects", "records of which level zero is gone"),
        ("comparisons",),
    ),
    Audit(
        "last_stable_offset_is_right",
        "Is open what batches and markers leave open, and does the last stable offset only grow?",
        last_stable_offset_is_right,
        ("checkpoints", "open transactions"),
        ("partitions", "batches", "said"),
    ),
    Audit(
        "aborted_index_equals_replay",
        "Are the aborted transactions those that batches and markers tell of?",
        aborted_index_equals_replay,
        ("markers", "aborted transactions"),
        ("batches", "said"),
    ),
    Audit(
        "every_marker_has_its_transaction",
        "Has a coordinator decided what each marker says?",
        every_marker_has_its_transaction,
        ("markers", "decided", "decided outside of the covered logs"),
        ("events", "batches"),
    ),
    Audit(
        "transactions_are_whole",
        "Is each transaction wholly there or wholly absent, over all partitions and groups?",
        transactions_are_whole,
        ("transactions", "committed", "parts with a marker due", "parts written to"),
        ("events",),
    ),
    Audit(
        "removal_offsets_monotone",
        "Do the offsets of removal only grow, and wait for level one?",
        removal_offsets_monotone,
        ("compacted partitions", "checkpoints"),
        ("partitions", "keys"),
    ),
    Audit(
        "level_one_is_clean",
        "Has level one each key once, and no transaction, as far as its state says so?",
        level_one_is_clean,
        ("keys where level one is clean",),
        ("batches", "keys"),
    ),
    Audit(
        "latest_value_survives",
        "Has every key its latest value still, if nothing was written to it since?",
        latest_value_survives,
        ("keys compared",),
        ("key findings", "key counts"),
    ),
    Audit(
        "tombstones_kept",
        "Is every tombstone and marker there that may not go yet?",
        tombstones_kept,
        ("tombstones and markers", "markers"),
        ("batches", "key findings", "key counts"),
    ),
    Audit(
        "nothing_resurrected",
        "Has no key that was deleted come back?",
        nothing_resurrected,
        ("keys compared",),
        ("key findings", "key counts"),
    ),
    Audit(
        "local_logs_agree",
        "Do all replicas' own logs give the same table?",
        local_logs_agree,
        ("keys compared",),
        ("partitions", "key findings", "key counts"),
    ),
    Audit(
        "rows_match_markers",
        "Is every stored transaction aborted by a row and a marker, or committed?",
        rows_match_markers,
        ("batches of transactions", "aborted transactions"),
        ("batches", "said"),
    ),
)
