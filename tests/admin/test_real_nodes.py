"""The admin servers of three real processes: of a cluster that works, and of one that does not."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from strandline.node.admin.metric_names import METRICS
from strandline.node.admin.openapi import OPENAPI
from strandline.node.config.node_config import InlineSection
from tests.admin.answers import check, samples, schema_of
from tests.cluster.real_cluster import RealCluster, real_cluster

__all__ = ["real_cluster"]

ABSENT = {
    "strandline_http_requests_total",
    "strandline_consumer_group_offset",
    "strandline_consumer_group_lag",
    # Of a loop that nothing held up.
    "strandline_event_loop_held_seconds_total",
    "strandline_event_loop_held_longest_seconds",
    # Of ports with TLS.
    "strandline_http_certificate_end_seconds",
    "strandline_kafka_certificate_end_seconds",
    "strandline_mesh_certificate_end_seconds",
    # Of a bucket: a folder's requests are sent once.
    "strandline_store_hedges_refused_total",
    "strandline_store_hedges_total",
    "strandline_store_hedges_won_total",
    # Of nodes with `memory.limit`, or with a budget of money.
    "strandline_memory_limit_bytes",
    "strandline_store_budget_exceeded_total",
    "strandline_store_budget_left",
    "strandline_store_budget_per_month",
    "strandline_store_spent_total",
    # Of clients above their quotas.
    "strandline_kafka_throttled_seconds_total",
    "strandline_kafka_throttled_total",
    # Of the partitions of compacted topics.
    "strandline_removal_clean_end",
    "strandline_removal_held_seconds",
    "strandline_removal_holds",
    "strandline_removal_log_bytes",
    "strandline_removal_log_end",
    "strandline_removal_mtro",
    "strandline_removal_mxro",
    "strandline_removal_ripe_markers",
    "strandline_removal_ripe_tombstones",
    # Of ports with logins by tokens.
    "strandline_http_token_key_reads_total",
    "strandline_kafka_token_key_reads_total",
    # Of nodes that have looked for what is to be published.
    "strandline_tail_age_seconds",
    # Of the node that leads the controller.
    "strandline_tail_point_age_seconds",
    # Of versions of programs of views.
    "strandline_view_bytes",
    "strandline_view_changes_total",
    "strandline_view_lag",
    "strandline_view_phase",
    "strandline_view_process_failures_total",
    "strandline_view_process_starts_total",
    "strandline_view_records_total",
    "strandline_view_rows",
    "strandline_view_skipped_records_total",
}
"""A node that is asked for the first time has answered nothing yet, and has no groups or compacted topics."""


def ask(address: str, path: str, body: Any = None) -> tuple[int, bytes]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://{address}{path}", data=data, headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def told(address: str, path: str) -> Any:
    status, body = ask(address, path)
    assert status == 200, (status, body)
    return json.loads(body)


def eventually(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_three_nodes_tell_of_themselves_and_of_one_that_dies(real_cluster: RealCluster) -> None:
    clients: dict[str, str | int | float | bool] = {"bootstrap.servers": real_cluster.bootstrap}
    admin = AdminClient(clients)
    for created in admin.create_topics([NewTopic("orders", 6, 3)]).values():
        created.result(60)
    producer = Producer({**clients, "enable.idempotence": True})
    for number in range(60):
        # The first of each partition is too large for the log, so it needs a window of epochs.
        value = b"value" if number >= 6 else bytes(InlineSection().max_batch_bytes)
        producer.produce("orders", value, partition=number % 6)
    assert producer.flush(60) == 0

    addresses = real_cluster.admin
    eventually(lambda: all(ask(address, "/health")[0] == 200 for address in addresses))
    high_watermarks: list[float] = []
    for address in addresses:
        text = ask(address, "/metrics")[1].decode()
        declared = set(re.findall("^# TYPE ([a-z_]+) ", text, re.MULTILINE))
        assert {metric.name for metric in METRICS} - declared <= ABSENT
        found = samples(text)
        assert found["strandline_healthy", ()] == 1
        assert found["strandline_controller_nodes", (("state", "live"),)] == 3
        for number in range(6):
            labels = (("partition", str(number)), ("topic", "orders"))
            if found["strandline_partition_leader", labels]:
                high_watermarks.append(found["strandline_partition_high_watermark", labels])
                assert found["strandline_partition_producers", labels] == 1
                assert found["strandline_epoch_window_size", labels] >= 1
        for path in (
            "/api/cluster",
            "/api/nodes",
            "/api/topics",
            "/api/partitions",
            "/api/groups",
            "/api/gc",
            "/api/gc/partitions",
            "/api/gc/dry-run",
            "/health",
        ):
            check(told(address, path), schema_of(path), path)
        check(told(address, "/api/topics/orders"), schema_of("/api/topics/{name}"))
        assert told(address, "/api/openapi.json") == OPENAPI
    assert high_watermarks == [10.0] * 6

    status, body = ask(addresses[1], "/api/checkpoints", {"topics": ["orders"], "timeout_seconds": 15})
    assert status == 200, body
    report = json.loads(body)
    check(report, schema_of("/api/checkpoints", "post"))
    assert report["complete"], report
    assert [part["topic"] for part in report["checkpoints"]] == ["orders"] * 6 + [None]
    assert ask(addresses[1], "/api/checkpoints", {"topics": ["none"]})[0] == 404

    real_cluster.kill(2)
    survivors = [addresses[0], addresses[2]]
    eventually(lambda: not any(told(a, "/api/nodes")["nodes"][1]["connected"] for a in survivors))
    eventually(lambda: all(ask(address, "/health")[0] == 200 for address in survivors))
    real_cluster.kill(3)

    def alone() -> bool:
        status, body = ask(addresses[0], "/health")
        reasons = [problem["reason"] for problem in json.loads(body)["problems"]]
        return status == 503 and {"no_controller", "groups_leaderless"} <= set(reasons)

    eventually(alone)
    assert ask(addresses[0], "/metrics")[0] == 200
    with pytest.raises(OSError, match="refused"):
        ask(addresses[2], "/health")
