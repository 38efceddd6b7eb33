"""What the comparison with Kafka looks at in an answer, without Kafka."""

from __future__ import annotations

import random
from typing import Any

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.apis import ApiKey
from strandline.statemachine.controller.acl import fault
from tests.kafka.wire.entities import entity_of
from tests.programs.access.run import random_acls, requests, seen


def metadata(name: str, code: ErrorCode, operations: int = 8) -> Any:
    topic = {"name": name, "error_code": code, "partitions": (), "topic_authorized_operations": operations}
    return entity_of(load_response_schema(ApiKey.METADATA, 9), {"topics": [topic]})


def test_refusals_names_and_operations_are_compared_and_nothing_else() -> None:
    refused = metadata("t", ErrorCode.topic_authorization_failed)
    assert ("error_code", "t", "topic_authorization_failed") in set(seen(refused))
    absent = metadata("t", ErrorCode.unknown_topic_or_partition)
    assert set(seen(absent)) == set(seen(metadata("t", ErrorCode.leader_not_available)))
    assert set(seen(absent)) != set(seen(metadata("u", ErrorCode.unknown_topic_or_partition)))
    assert set(seen(absent)) != set(seen(metadata("t", ErrorCode.unknown_topic_or_partition, 9)))
    assert set(seen(refused)) - {("shown", "t")} != set(seen(absent)) - {("shown", "t")}
    assert not any("__offsets" in one for one in seen(metadata("__offsets", ErrorCode.none)))


def test_entries_are_those_that_kafka_takes_and_every_request_is_sent() -> None:
    rng = random.Random(1)
    drawn = [acl for _ in range(50) for acl in random_acls(rng)]
    assert len(drawn) > 100
    assert all(fault(acl) is None for acl in drawn)
    without = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.API_VERSIONS}
    assert requests().keys() == set(ApiKey) - without
