"""Requests of a transactional producer, in the first version of Kafka's transactions.

There the epoch stays when a transaction ends. So the end can be said by a process that did not begin it, from
what was recorded, and said again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.snapshot.connection import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    RETRIABLE,
    TXN_OFFSET_COMMIT,
    Api,
    ConnectionLost,
    by_topic,
)
from strandline.snapshot.producing.brokers import GROUP, TRANSACTION, Brokers, first_code
from strandline.snapshot.producing.errors import Fenced, SinkError

ONGOING: Final = "Ongoing"
COMMITTING: Final = "PrepareCommit"
COMMITTED: Final = "CompleteCommit"
ABORTED: Final = ("PrepareAbort", "CompleteAbort")
FENCED: Final = frozenset(
    {
        ErrorCode.invalid_producer_epoch,
        ErrorCode.producer_fenced,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.invalid_txn_state,
        ErrorCode.unknown_producer_id,
    }
)
_NONE: Final = -1
_ANY_GENERATION: Final = -1


@dataclass(frozen=True)
class Producer:
    """A transactional id, with the identity that it was given."""

    transactional_id: str
    producer_id: int
    epoch: int


def begin(
    brokers: Brokers, transactional_id: str, timeout_seconds: float, own: Producer | None = None
) -> Producer:
    """Take a transactional id: the one that had it is fenced, and what it left open is aborted.

    `own` is the identity that the caller has: it gets the next epoch, unless another one has taken the id
    since (KIP-360). Raises SinkError, Unanswered, and Fenced for an `own` that is not the newest.
    """
    request = INIT_PRODUCER_ID.request.InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout=timedelta(seconds=timeout_seconds),
        producer_id=_NONE if own is None else own.producer_id,
        producer_epoch=_NONE if own is None else own.epoch,
    )
    answer = brokers.ask_coordinator(
        TRANSACTION, transactional_id, INIT_PRODUCER_ID, request, lambda told: told.error_code
    )
    if answer.error_code is ErrorCode.invalid_transaction_timeout:
        raise SinkError(
            f"the cluster allows no transactions of {timeout_seconds:g} s: set the option "
            "'transactionTimeoutSeconds' to its transactions.max_timeout_seconds or less"
        )
    if own is not None and answer.error_code in FENCED:
        raise Fenced(f"{transactional_id}: {answer.error_code.name}")
    if answer.error_code is not ErrorCode.none:
        raise SinkError(f"transactional id {transactional_id!r} cannot be used: {answer.error_code.name}")
    return Producer(transactional_id, answer.producer_id, answer.producer_epoch)


def add_partitions(brokers: Brokers, producer: Producer, places: Iterable[tuple[str, int]]) -> None:
    """Make partitions part of the open transaction. Raises Fenced, SinkError, Unanswered."""
    types = ADD_PARTITIONS_TO_TXN.request
    request = types.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=producer.transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=tuple(
            types.AddPartitionsToTxnTopic(name=topic, partitions=tuple(numbers))
            for topic, numbers in by_topic(places).items()
        ),
    )

    def code_of(answer: Any) -> ErrorCode:
        return first_code(
            one.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for one in topic.results_by_partition
            # Said of the partitions beside one that is refused.
            if one.partition_error_code is not ErrorCode.operation_not_attempted
        )

    _have_done(brokers, producer, ADD_PARTITIONS_TO_TXN, request, code_of)


def commit_offsets(
    brokers: Brokers, producer: Producer, group: str, offsets: Mapping[tuple[str, int], int], metadata: str
) -> None:
    """Make offsets of a group, by topic and partition, part of the open transaction, with their metadata.

    Raises Fenced, SinkError, Unanswered.
    """
    adding = ADD_OFFSETS_TO_TXN.request.AddOffsetsToTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        group_id=group,
    )
    _have_done(brokers, producer, ADD_OFFSETS_TO_TXN, adding)
    types = TXN_OFFSET_COMMIT.request
    topics = []
    for topic, numbers in by_topic(offsets).items():
        rows = [
            types.TxnOffsetCommitRequestPartition(
                partition_index=number,
                committed_offset=offsets[topic, number],
                committed_leader_epoch=_NONE,
                committed_metadata=metadata,
            )
            for number in numbers
        ]
        topics.append(types.TxnOffsetCommitRequestTopic(name=topic, partitions=tuple(rows)))
    request = types.TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=group,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        generation_id=_ANY_GENERATION,
        member_id="",
        group_instance_id=None,
        topics=tuple(topics),
    )

    def code_of(answer: Any) -> ErrorCode:
        return first_code(one.error_code for each in answer.topics for one in each.partitions)

    _check(producer, code_of(brokers.ask_coordinator(GROUP, group, TXN_OFFSET_COMMIT, request, code_of)))


def end(brokers: Brokers, producer: Producer, *, commit: bool) -> None:
    """Commit or abort; said again it does no more.

    Raises Fenced, SinkError, and Unanswered: then it may be done or not.
    """
    request = END_TXN.request.EndTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=commit,
    )
    _have_done(brokers, producer, END_TXN, request)


def _have_done(
    brokers: Brokers,
    producer: Producer,
    api: Api,
    request: Any,
    code_of: Callable[[Any], ErrorCode] = lambda answer: answer.error_code,
) -> None:
    """Ask the coordinator of the producer's transactions. Raises Fenced, SinkError, Unanswered."""
    answer = brokers.ask_coordinator(TRANSACTION, producer.transactional_id, api, request, code_of)
    _check(producer, code_of(answer))


def _check(producer: Producer, code: ErrorCode) -> None:
    if code in FENCED:
        raise Fenced(f"{producer.transactional_id}: {code.name}")
    if code is not ErrorCode.none:
        raise SinkError(f"transactional id {producer.transactional_id!r}: the cluster says {code.name}")


@dataclass(frozen=True)
class Described:
    """The newest transaction of a transactional id; `state` is Kafka's word, empty for an unknown id."""

    state: str
    producer_id: int
    epoch: int


def describe(brokers: Brokers, ids: Sequence[str]) -> dict[str, Described]:
    """The state of each id. Raises SinkError, Unanswered."""
    deadline = brokers.deadline()
    found: dict[str, Described] = {}
    while len(found) < len(ids):
        left = [one for one in ids if one not in found]
        reason: object = None
        try:
            for address, names in brokers.by_coordinator(TRANSACTION, left):
                request = DESCRIBE_TRANSACTIONS.request.DescribeTransactionsRequest(
                    transactional_ids=tuple(names)
                )
                for one in brokers.ask(address, DESCRIBE_TRANSACTIONS, request).transaction_states:
                    if one.error_code in RETRIABLE:
                        reason = one.error_code.name
                    elif one.error_code in (ErrorCode.none, ErrorCode.transactional_id_not_found):
                        told = Described(one.transaction_state, one.producer_id, one.producer_epoch)
                        found[one.transactional_id] = told
                    else:
                        raise SinkError(f"transactional id {one.transactional_id!r}: {one.error_code.name}")
        except ConnectionLost as error:
            reason = error
        if reason is not None:
            brokers.forget(TRANSACTION, left)
            deadline.pause("the state of transactions", reason)
    return found


def open_ids(brokers: Brokers, belongs: Callable[[str], bool]) -> list[str]:
    """Transactional ids with an open transaction, as far as the brokers tell at once."""
    request = LIST_TRANSACTIONS.request.ListTransactionsRequest(
        state_filters=(ONGOING,), producer_id_filters=()
    )
    found: dict[str, None] = {}
    for address in brokers.all_nodes():
        with suppress(ConnectionLost):
            for one in brokers.ask(address, LIST_TRANSACTIONS, request).transaction_states:
                if belongs(one.transactional_id):
                    found[one.transactional_id] = None
    return list(found)
