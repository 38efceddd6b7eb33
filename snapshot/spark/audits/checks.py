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
    Audit("replicas_agree", "Did all replicas publish the same bytes at each checkpoint?", replicas_agree),
    Audit("no_window", "Is no leader's epoch window part of any state?", no_window),
    Audit("epochs_never_regress", "Do epochs and terms only go up, in their order?", epochs_never_regress),
    Audit(
        "references_exist_and_crc",
        "Is every batch that is referred to there, intact, and what its extent says?",
        references_exist_and_crc,
    ),
    Audit(
        "offsets_contiguous",
        "Are there batches for every offset from start to high watermark?",
        offsets_contiguous,
    ),
    Audit("producer_sequences", "Has no producer a missing or a doubled sequence?", producer_sequences),
    Audit("replay", "Does each checkpoint with the log after it give the next one?", replay),
    Audit(
        "collectable_epochs_monotone",
        "Do M, each partition's M(p), and its offsets only grow?",
        collectable_epochs_monotone,
    ),
    Audit(
        "nothing_deleted_above_m",
        "Is every level-zero object above M there that a log or a checkpoint names?",
        nothing_deleted_above_m,
    ),
    Audit(
        "nothing_collectable_left",
        "Is everything gone that may be collected, on both levels, beyond the grace?",
        nothing_collectable_left,
    ),
    Audit(
        "level_one_holds_level_zero",
        "Does level one hold the very records that level zero held?",
        level_one_holds_level_zero,
    ),
    Audit(
        "last_stable_offset_is_right",
        "Is open what batches and markers leave open, and does the last stable offset only grow?",
        last_stable_offset_is_right,
    ),
    Audit(
        "aborted_index_equals_replay",
        "Are the aborted transactions those that batches and markers tell of?",
        aborted_index_equals_replay,
    ),
    Audit(
        "every_marker_has_its_transaction",
        "Has a coordinator decided what each marker says?",
        every_marker_has_its_transaction,
    ),
    Audit(
        "transactions_are_whole",
        "Is each transaction wholly there or wholly absent, over all partitions and groups?",
        transactions_are_whole,
    ),
    Audit(
        "removal_offsets_monotone",
        "Do the offsets of removal only grow, and wait for level one?",
        removal_offsets_monotone,
    ),
    Audit(
        "level_one_is_clean",
        "Has level one each key once, and no transaction, as far as its state says so?",
        level_one_is_clean,
    ),
    Audit(
        "latest_value_survives",
        "Has every key its latest value still, if nothing was written to it since?",
        latest_value_survives,
    ),
    Audit("tombstones_kept", "Is every tombstone and marker there that may not go yet?", tombstones_kept),
    Audit("nothing_resurrected", "Has no key that was deleted come back?", nothing_resurrected),
    Audit("local_logs_agree", "Do all replicas' own logs give the same table?", local_logs_agree),
    Audit(
        "rows_match_markers",
        "Is every stored transaction aborted by a row and a marker, or committed?",
        rows_match_markers,
    ),
)
