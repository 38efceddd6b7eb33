"""docs/kafka-protocol.md says what the table of APIs and the limits say."""

from __future__ import annotations

import re

from strandline.node.kafka.wire.apis import APIS
from strandline.node.kafka.wire.server_config import CloseReason, ServerConfig
from tests import ROOT

PAGE = (ROOT / "docs" / "kafka-protocol.md").read_text()


def test_the_page_lists_the_versions_that_are_spoken() -> None:
    rows = re.findall(
        "^[|] ([0-9]+) [|] ([A-Z_]+) [|] ([0-9]+)\u2013([0-9]+) [|] ([0-9]+) [|]$", PAGE, re.MULTILINE
    )
    table = [(api.key, api.key.name, api.first, api.last, api.flexible) for api in APIS.values()]
    assert [(int(key), name, *map(int, numbers)) for key, name, *numbers in rows] == table


def test_the_page_lists_every_limit_and_reason() -> None:
    limits = set(ServerConfig.__dataclass_fields__) - {"sweep_seconds"}
    assert {name for name in limits if f"`{name}`" not in PAGE} == set()
    assert {reason for reason in CloseReason if f"`{reason}`" not in PAGE} == set()
