"""The table of docs/security.md against the handlers: what each request asks for, and how it is refused."""

from __future__ import annotations

import re
from functools import partial
from operator import eq
from typing import Final

import pytest

from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.statemachine.controller.acl import Operation, ResourceType
from tests import ROOT
from tests.kafka.handlers.authorized_place import (
    CODES,
    REQUESTS,
    Asked,
    asked_for,
    refusals,
)
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.handlers.groups_home import at_home

PAGE: Final = (ROOT / "docs" / "security.md").read_text()


def table() -> dict[str, set[Asked]]:
    """The rows of the page."""
    section = PAGE.partition("| request | asks for |")[2].partition("\n\n")[0]
    return {
        cells[1]: {
            (Operation[operation], ResourceType[kind])
            for operation, kind in re.findall("`([A-Z_]+) ([A-Z_]+)`", cells[2])
        }
        for cells in ([cell.strip() for cell in line.split("|")] for line in section.splitlines()[2:])
    }


def test_each_request_has_a_row_and_an_example() -> None:
    names = {api.key.name for api in APIS.values()}
    assert set(table()) == names
    without = {"PRODUCE", "FETCH", "LIST_OFFSETS", "SASL_HANDSHAKE", "SASL_AUTHENTICATE", "API_VERSIONS"}
    assert {key.name for key in REQUESTS} == names - without


@pytest.mark.parametrize("key", list(ApiKey), ids=lambda key: key.name)
def test_a_request_asks_for_what_its_row_says(key: ApiKey) -> None:
    async def test(_: FakeNode) -> None:
        row = table()[key.name]
        free, answers, place = await asked_for(key, lambda _: False)
        assert refusals(answers) == set()
        none, answers, place = await asked_for(key, lambda _: True)
        everything = free.asked | none.asked
        for one in row:
            everything |= (await asked_for(key, partial(eq, one)))[0].asked
        if key in (ApiKey.METADATA, ApiKey.DESCRIBE_CLUSTER):
            everything -= {(one, ResourceType.CLUSTER) for one in Operation} - row  # authorized operations
        assert everything == row
        told = refusals(answers)
        assert told <= {CODES[kind] for _, kind in row}
        assert told or key in SILENT
        assert place.done == []

    at_home(test)


SILENT: Final = {
    ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.API_VERSIONS, ApiKey.LIST_GROUPS,
    ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_CLUSTER,
}  # fmt: skip
"""Requests whose answers say nothing of what they leave out."""
EITHER: Final = {
    ApiKey.LIST_GROUPS, ApiKey.INIT_PRODUCER_ID, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.WRITE_TXN_MARKERS,
    ApiKey.CREATE_TOPICS, ApiKey.METADATA, ApiKey.DELETE_TOPICS,
}  # fmt: skip
"""Requests for which one of two permissions is enough."""


@pytest.mark.parametrize(
    "key", [key for key in ApiKey if key not in SILENT | EITHER], ids=lambda key: key.name
)
def test_each_permission_is_needed(key: ApiKey) -> None:
    async def test(_: FakeNode) -> None:
        for one in table()[key.name]:
            answers = (await asked_for(key, partial(eq, one)))[1]
            if key is ApiKey.DESCRIBE_TRANSACTIONS and one[1] is ResourceType.TOPIC:
                assert answers[0].transaction_states[0].topics == ()
            else:
                assert refusals(answers) == {CODES[one[1]]}, one

    at_home(test)
