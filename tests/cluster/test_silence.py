"""What is said while nothing comes, and as what a failed request is told."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from strandline.cluster.failure import CommandFailed
from strandline.cluster.kafka_errors import failed, note, reach, troubles
from strandline.cluster.silence import Silence
from strandline.cluster.target import Target
from tests.cluster.command import nowhere
from tests.served import QuietHandler, served

STORE = {"reason": "storage_failing", "meaning": "it fails", "detail": "s3://b: the bucket is missing"}
LEADERLESS = {"reason": "groups_leaderless", "meaning": "groups have no leader", "detail": None}


@contextmanager
def node(*problems: dict[str, Any]) -> Iterator[str]:
    """Something that answers /health; its address."""

    class Health(QuietHandler):
        def do_GET(self) -> None:
            data = json.dumps({"problems": problems}).encode()
            self.send_response(503 if problems else 200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with served(Health) as address:
        yield address


@pytest.fixture
def broker() -> Iterator[str]:
    """Something that takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


class Client:
    """A consumer's metadata: the leader of partition 0, or none at all."""

    def __init__(self, leader: int | None) -> None:
        self.leader = leader

    def list_topics(self, topic: str, timeout: float) -> Any:
        if self.leader is None:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        partitions = {0: SimpleNamespace(leader=self.leader)}
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions=partitions)})


def error(code: int) -> KafkaError:
    return KafkaError(code)


@pytest.mark.parametrize(
    "code",
    [KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError.KAFKA_STORAGE_ERROR],
)
def test_a_broker_that_answers_is_not_called_silent(code: int, broker: str) -> None:
    unknown = Target(broker, ("127.0.0.1:1",), None, admin_known=False)
    assert "no Kafka broker answers" not in str(failed(unknown, "it failed", error(code)))
    assert "storage" in str(failed(unknown, "it failed", error(code)))
    with node(LEADERLESS, STORE) as admin:
        told = str(failed(Target(broker, (admin,), None), "it failed", error(code)))
    assert told.startswith("it failed")
    assert "s3://b: the bucket is missing; groups have no leader; see `strandline cluster status`" in told


def test_only_where_nothing_answers_no_broker_does(broker: str) -> None:
    gone = Target(nowhere(), (), None, admin_known=False)
    assert str(failed(gone, "x", error(KafkaError._TIMED_OUT))).startswith("no Kafka broker answers at 127")
    with pytest.raises(CommandFailed, match="no Kafka broker answers"):
        reach(gone)
    reach(Target(f"{nowhere()},{broker}", (), None))
    reach(Target(f"{'x' * 80}:1,{broker}", (), None))


def test_a_refused_login_explains_that_clusters_failures_for_a_while(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process reads two clusters, as a notebook may: the login of one says nothing of the other."""
    where = Target(broker, ("127.0.0.1:1",), None, admin_known=False)
    note("elsewhere:1", error(KafkaError._AUTHENTICATION))
    assert "login" not in str(failed(where, "it failed", error(KafkaError._TIMED_OUT)))
    note(broker, error(KafkaError._AUTHENTICATION))
    assert "does not accept the login" in str(failed(where, "it failed", error(KafkaError._TIMED_OUT)))
    now = time.monotonic()
    monkeypatch.setattr("strandline.cluster.kafka_errors.time.monotonic", lambda: now + 31)
    assert "login" not in str(failed(where, "it failed", error(KafkaError._TIMED_OUT)))


def test_what_nodes_say_is_told_once_and_who_is_silent() -> None:
    silent = nowhere()
    with node(STORE) as one, node(STORE) as two, node() as well:
        assert troubles(Target("", (one, two, silent), None)) == (
            f"s3://b: the bucket is missing; no node answers at {silent}"
        )
        assert troubles(Target("", (well,), None)) is None
        assert troubles(Target("", (one,), None, admin_known=False)) is None


def test_one_store_that_fails_is_told_of_once_whatever_each_node_met_there() -> None:
    with node(STORE) as one, node({**STORE, "detail": "s3://b: timed out"}, LEADERLESS) as two:
        assert troubles(Target("", (one, two), None)) == (
            "s3://b: the bucket is missing; groups have no leader"
        )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("strandline.cluster.silence.time.monotonic", lambda: now[0])
    return now


def test_a_reason_is_told_soon_and_again_later(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with node(STORE) as admin:
        quiet = Silence(Target("", (admin,), None), "orders", None)
        said = []
        for second in range(40):
            clock[0] = 100.0 + second
            assert not quiet.gives_up({0}, Client(1), follow=False)  # type: ignore[arg-type]
            if capsys.readouterr().err:
                said.append(second)
        assert said == [2, 32]
        quiet.over()
        clock[0] += 1
        assert not quiet.gives_up({0}, Client(1), follow=False)  # type: ignore[arg-type]
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("leader", "met", "why"),
    [
        (-1, None, "1 partition without a leader (0)"),
        (None, None, "no Kafka broker answers at there:1"),
        (1, KafkaError._ALL_BROKERS_DOWN, "All broker connections are down"),
        (1, None, "name no reason"),
    ],
)
def test_time_over_says_why(
    clock: list[float], leader: int | None, met: int | None, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet = Silence(Target("there:1", (), None, admin_known=False), "orders", 5.0)
    if met is not None:
        quiet.error(error(met))
    clock[0] += 4
    assert not quiet.gives_up({0}, Client(leader), follow=False)  # type: ignore[arg-type]
    assert (why in capsys.readouterr().err) == ("no reason" not in why)
    clock[0] += 1
    with pytest.raises(CommandFailed) as caught:
        quiet.gives_up({0}, Client(leader), follow=True)  # type: ignore[arg-type]
    assert why in str(caught.value)


def test_following_a_topic_without_news_is_no_trouble(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with node(LEADERLESS) as admin:
        quiet = Silence(Target("", (admin,), None), "orders", 60.0)
        quiet.error(error(KafkaError._TRANSPORT))  # one broker of several, say
        for second in range(60):
            clock[0] = 100.0 + second
            assert not quiet.gives_up((), Client(1), follow=True)  # type: ignore[arg-type]
        clock[0] = 160.0
        assert quiet.gives_up((), Client(1), follow=True)  # type: ignore[arg-type]
    assert capsys.readouterr().err == ""
