"""The paths about transactions: those this node coordinates, and the end of one that hangs.

A node knows the transactional ids whose coordinators it leads; a client that wants all of them asks every
node. The answers are the state that this node has applied, which is old on a node that has been cut off. An
abort is a command, and has no effect before it is applied.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from strandline.node.admin.http import Json, json_body, refusal
from strandline.node.admin.pages import coordinators_led, limit, only, page
from strandline.node.admin.replica_sources import TransactionCoordinatorSource
from strandline.node.admin.source import AdminSource
from strandline.node.refusal import Refusal
from strandline.statemachine.internal_topics import TRANSACTIONS_TOPIC
from strandline.statemachine.kafka_errors import KafkaError
from strandline.statemachine.transactions.transaction_state import Transaction, TransactionState

_STATES: Final = tuple(state.value for state in TransactionState)
_NOT_THERE: Final = (KafkaError.TRANSACTIONAL_ID_NOT_FOUND, KafkaError.NOT_COORDINATOR)


class TransactionsApi:
    """Answers requests about one node's transactional ids."""

    def __init__(self, source: AdminSource) -> None:
        self._source = source

    def routes(self) -> list[tuple[str, str, Callable[[Request], Awaitable[Response]]]]:
        """Method, path, and what answers it."""
        return [
            ("GET", "/api/transactions", self.transactions),
            ("POST", "/api/transactions/abort", self.abort),
        ]

    async def transactions(self, request: Request) -> Response:
        """Transactional ids in their order, of one state or one of them if asked so."""
        only(request, "limit", "after", "state", "transactional_id")
        asked = request.query_params
        state, wanted, after = asked.get("state"), asked.get("transactional_id"), asked.get("after", "")
        if state is not None and state not in _STATES:
            raise HTTPException(400, f"state is one of {', '.join(_STATES)}, not {state[:100]!r}")
        led = self._source.coordinators.led_transactions()
        found = {
            one.transactional_id: (coordinator, one)
            for coordinator in led
            for one in coordinator.machine.transactions.values()
            if one.transactional_id > after
            and state in (None, one.state.value)
            and wanted in (None, one.transactional_id)
        }
        told = coordinators_led(
            self._source.controller.machine, TRANSACTIONS_TOPIC, [one.number for one in led]
        )
        return await page(
            "transactions", sorted(found), limit(request), lambda key: self._view(*found[key]), told
        )

    async def abort(self, request: Request) -> Response:
        """Abort the open transaction of this number, against its producer.

        404: this node does not know the id, another may. 409: no transaction of this number is open. 503: it
        may be aborted, or not.
        """
        body = await json_body(request)
        if (
            not isinstance(body, dict)
            or set(body) != {"transactional_id", "number"}
            or not isinstance(body["transactional_id"], str)
            or type(body["number"]) is not int
            or not 0 < body["number"] < 2**63
        ):
            raise HTTPException(400, 'the body is like {"transactional_id": "copier", "number": 7}')
        transactional_id, number = body["transactional_id"], body["number"]
        for coordinator in self._source.coordinators.led_transactions():
            if transactional_id in coordinator.machine.transactions:
                ended = await coordinator.abort(transactional_id, number)
                if ended is None:
                    return refusal(503, "the coordinator moved: it may be aborted, or not")
                if not isinstance(ended, Refusal):
                    return Json({"transactional_id": transactional_id, "number": number, "aborted": True})
                if ended.reason not in _NOT_THERE:
                    status = 409 if ended.reason is KafkaError.INVALID_TXN_STATE else 503
                    return refusal(status, ended.message or ended.reason.name.lower())
        return refusal(404, f"this node does not coordinate {transactional_id[:100]!r}")

    def _view(self, coordinator: TransactionCoordinatorSource, one: Transaction) -> dict[str, Any]:
        machine = self._source.controller.machine
        partitions = []
        for topic_id, number in sorted(one.partitions):
            topic = machine.topic_by_id(topic_id)
            # A topic that was deleted, or is not known here yet.
            partitions.append({"topic": None if topic is None else topic.name, "partition": number})
        return {
            "transactional_id": one.transactional_id,
            "coordinator": coordinator.number,
            "state": one.state.value,
            "number": one.number,
            "producer_id": one.producer_id,
            "producer_epoch": one.epoch,
            "timeout_ms": one.timeout_ms,
            "started_ms": None if one.started < 0 else one.started,
            "updated_ms": one.updated,
            "partitions": partitions,
            "groups": sorted(one.groups),
        }
