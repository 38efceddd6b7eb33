"""/api/transactions: what is told of transactional ids, and the abort of a transaction that hangs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strandline.node.refusal import Refusal
from strandline.statemachine.controller.controller_commands import CreateInternalTopic
from strandline.statemachine.internal_topics import TRANSACTIONS_TOPIC
from strandline.statemachine.kafka_errors import KafkaError
from strandline.statemachine.transactions.transactions import TransactionsMachine
from tests.admin.answers import check, refused, schema_of
from tests.admin.small_node import SmallNode, small_node
from tests.raft.mesh.mesh_nodes import on_loop
from tests.statemachine.transaction_log import Log

ABORT = "/api/transactions/abort"


class Coordinator:
    """A coordinator of transactions that this node leads, as the API sees it."""

    def __init__(self, number: int, log: Log) -> None:
        self.number = number
        self.log = log
        self.asked: list[tuple[str, int]] = []
        self.answer: Any = (4001, 1)

    @property
    def machine(self) -> TransactionsMachine:
        return self.log.machine

    async def abort(self, transactional_id: str, number: int) -> Any:
        self.asked.append((transactional_id, number))
        return self.answer


def body(transactional_id: str) -> bytes:
    return json.dumps({"transactional_id": transactional_id, "number": 1}).encode()


def coordinators(node: SmallNode) -> list[Coordinator]:
    """Two of them, with four ids; the first's "b" is open."""
    orders = next(topic for topic in node.machine.topics if topic.name == "orders")
    first, second = Log(), Log()
    for tid in ("d", "b"):
        first.init(tid)
    first.now = 7000
    partitions = [(orders.topic_id, 1), (orders.topic_id, 0), (b"gone" * 4, 3)]
    first.add((4002, 0), *partitions, groups=["readers"], tid="b")
    for tid in ("c", "a"):
        second.init(tid)
    node.coordinators.transactions = [Coordinator(3, first), Coordinator(9, second)]
    return list(node.coordinators.transactions)


@on_loop
async def test_the_transactional_ids_come_in_their_order_with_what_is_in_them(tmp_path: Path) -> None:
    async with small_node(tmp_path) as (node, _, client):
        none: dict[str, Any] = {
            "transactions": [],
            "next": None,
            "coordinators": {"led": [], "coordinators_total": 0},
        }
        assert (await client.get("/api/transactions")) == none
        await node.command(CreateInternalTopic(b"i" * 16, TRANSACTIONS_TOPIC, 16, 1))
        coordinators(node)
        answer = await client.get("/api/transactions")
        check(answer, schema_of("/api/transactions"))
        assert answer["coordinators"] == {"led": [3, 9], "coordinators_total": 16}
        rows = answer["transactions"]
        assert [(row["transactional_id"], row["coordinator"], row["state"]) for row in rows] == [
            ("a", 9, "Empty"), ("b", 3, "Ongoing"), ("c", 9, "Empty"), ("d", 3, "Empty"),
        ]  # fmt: skip
        assert rows[0]["started_ms"] is None
        assert rows[1] == {
            "transactional_id": "b", "coordinator": 3, "state": "Ongoing", "number": 1, "producer_id": 4002,
            "producer_epoch": 0, "timeout_ms": 60_000, "started_ms": 7000, "updated_ms": 7000,
            "groups": ["readers"], "partitions": rows[1]["partitions"],
        }  # fmt: skip
        assert sorted(map(str, rows[1]["partitions"])) == [
            "{'topic': 'orders', 'partition': 0}",
            "{'topic': 'orders', 'partition': 1}",
            "{'topic': None, 'partition': 3}",
        ]


@on_loop
async def test_they_come_in_pages_and_by_state_and_one_by_its_name(tmp_path: Path) -> None:
    async with small_node(tmp_path) as (node, _, client):
        coordinators(node)
        seen, after = [], ""
        while True:
            page = await client.get(f"/api/transactions?limit=3{after}")
            check(page, schema_of("/api/transactions"))
            seen += [row["transactional_id"] for row in page["transactions"]]
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
        assert seen == ["a", "b", "c", "d"]

        async def ids(query: str) -> list[str]:
            rows = (await client.get(f"/api/transactions?{query}"))["transactions"]
            return [row["transactional_id"] for row in rows]

        assert await ids("state=Ongoing") == ["b"]
        assert await ids("state=Empty&after=a") == ["c", "d"]
        assert await ids("transactional_id=c") == ["c"]
        assert await ids("transactional_id=x") == []


@on_loop
async def test_an_abort_goes_to_the_coordinator_that_has_the_id(tmp_path: Path) -> None:
    async with small_node(tmp_path) as (node, _, client):
        first, second = coordinators(node)
        answer = await client.ask("POST", ABORT, body("b"))
        assert answer.status == 200
        check(answer.json(), schema_of(ABORT, "post"))
        assert (first.asked, second.asked) == ([("b", 1)], [])


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (KafkaError.INVALID_TXN_STATE, 409),
        (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, 503),
        (KafkaError.NOT_COORDINATOR, 404),
        (KafkaError.TRANSACTIONAL_ID_NOT_FOUND, 404),
    ],
)
def test_a_refused_abort_says_whether_to_ask_another_node(
    code: KafkaError, status: int, tmp_path: Path
) -> None:
    @on_loop
    async def test() -> None:
        async with small_node(tmp_path) as (node, _, client):
            coordinators(node)[0].answer = Refusal(code, "why")
            answer = await client.ask("POST", ABORT, body("b"))
            why = refused(answer, status)
            assert why == ("this node does not coordinate 'b'" if status == 404 else "why")

    test()


@on_loop
async def test_an_abort_of_which_nobody_knows_what_becomes_is_not_told_as_refused(tmp_path: Path) -> None:
    async with small_node(tmp_path) as (node, _, client):
        coordinators(node)[0].answer = None
        assert "may be aborted, or not" in refused(await client.ask("POST", ABORT, body("b")), 503)


@on_loop
async def test_bad_requests_are_refused(tmp_path: Path) -> None:
    async with small_node(tmp_path) as (node, _, client):
        first, _second = coordinators(node)
        for query in ("state=Open", "what=1", "limit=0", "limit=x"):
            refused(await client.ask("GET", f"/api/transactions?{query}"), 400)
        wrong: list[Any] = [
            [], {}, {"transactional_id": "b"}, {"transactional_id": 5, "number": 1},
            {"transactional_id": "b", "number": "1"}, {"transactional_id": "b", "number": True},
            {"transactional_id": "b", "number": 0}, {"transactional_id": "b", "number": 2**63},
            {"transactional_id": "b", "number": 1, "more": 1},
        ]  # fmt: skip
        for bad in wrong:
            refused(await client.ask("POST", ABORT, json.dumps(bad).encode()), 400)
        refused(await client.ask("POST", ABORT, body("x")), 404)
        assert first.asked == []
