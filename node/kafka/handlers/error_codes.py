"""Kafka's code for each reason of a refusal by the layers below: the one place that translates them."""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from strandline.node.refusal import Cause, Reason, Refusal
from strandline.statemachine.kafka_errors import Refused

CODES: Final = {
    Reason.NOT_LEADER: ErrorCode.not_leader_or_follower,
    Reason.NOT_NOW: ErrorCode.not_enough_replicas,
    Reason.STORAGE_FAILED: ErrorCode.kafka_storage_error,
    Reason.UNDECIDED: ErrorCode.not_enough_replicas_after_append,
    Reason.TOO_FEW_HOLD: ErrorCode.not_enough_replicas_after_append,
    Reason.LATE: ErrorCode.request_timed_out,
    Reason.COORDINATOR_UNDECIDED: ErrorCode.not_coordinator,
    Reason.BAD_ACKS: ErrorCode.invalid_required_acks,
    Reason.NO_TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
    Reason.TOO_LARGE: ErrorCode.message_too_large,
    Reason.CORRUPT: ErrorCode.corrupt_message,
    Reason.INVALID_RECORD: ErrorCode.invalid_record,
    Reason.INVALID_TIMESTAMP: ErrorCode.invalid_timestamp,
    Reason.UNKNOWN_COMPRESSION: ErrorCode.unsupported_compression_type,
    Reason.OUT_OF_ORDER: ErrorCode.out_of_order_sequence_number,
    Reason.STALE_PRODUCER_EPOCH: ErrorCode.invalid_producer_epoch,
    Reason.NOT_IN_TRANSACTION: ErrorCode.invalid_txn_state,
    Reason.TRANSACTION_ABORTABLE: ErrorCode.transaction_abortable,
    Reason.TOO_MANY_ABORTED: ErrorCode.policy_violation,
    Reason.ABOVE_HIGH_WATERMARK: ErrorCode.offset_out_of_range,
}


def code_of(refused: Refusal | Refused | Cause | None) -> ErrorCode:
    """Kafka's code for a refusal, the node's or a state machine's, or for its reason; None is no error."""
    match refused:
        case Refusal(reason=reason) | Refused(error=reason) | reason:
            pass
    if reason is None:
        return ErrorCode.none
    return CODES[reason] if isinstance(reason, Reason) else ErrorCode[reason.value]
