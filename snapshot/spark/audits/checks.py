"""All audits, in the order of the report."""

from __future__ import annotations

from snapshot.spark.audits.audit import Audit
from snapshot.spark.audits.batch_audits import (
    offsets_contiguous,
    producer_sequences,
    references_exist_and_crc,
)
from snapshot.spark.audits.document_audits import epochs_never_regress, no_window, replay, replicas_agree

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
)
