"""The table of requests is the table of what is advertised."""

from __future__ import annotations

from strandline.node.kafka.handlers.handler import TABLE
from strandline.node.kafka.wire.apis import APIS, ApiKey


def test_what_is_advertised_is_answered() -> None:
    # ApiVersions is answered by the connection itself.
    assert set(TABLE) == set(APIS) - {ApiKey.API_VERSIONS}
