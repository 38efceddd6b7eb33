"""Spark's Kafka source and sink: a batch written, a stream copied in steps, committed records read back."""

from __future__ import annotations

import json
import subprocess
import uuid
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests import ROOT
from tests.clients.programs import SPARK, Missing
from tests.clients.spark_copy import COUNT

_SPARK_SECONDS: Final = 180.0


class Copied(NamedTuple):
    """What became of two topics."""

    source: list[str]
    target: list[str]
    steps: int


@pytest.fixture
def copied(bootstrap: str, tmp_path: Path) -> Copied:
    """The start of Spark is in nobody's minute: on a busy machine it takes one by itself."""
    try:
        command = SPARK.command()
    except Missing as error:
        pytest.skip(str(error))
    source, target = (f"spark-{what}-{uuid.uuid4().hex[:8]}" for what in ("in", "out"))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(topic, 3, 3) for topic in (source, target)]).values():
        made.result(60)
    # What was aborted is nothing to it.
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": source})
    producer.init_transactions(20)
    producer.begin_transaction()
    for partition in range(3):
        producer.produce(source, b"aborted", partition=partition)
    producer.flush(60)
    producer.abort_transaction(20)
    done = subprocess.run(
        [*command, bootstrap, source, target, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=_SPARK_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return Copied(**json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.timeout(120, func_only=True)
def test_a_batch_and_a_stream(copied: Copied) -> None:
    values = sorted(f"value-{number}" for number in range(COUNT))
    assert (copied.source, copied.target) == (values, values)
    assert copied.steps > 1
