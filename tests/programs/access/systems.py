"""One node of Strandline and one of Apache Kafka with the same users, topics, groups and access control."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.apis import ApiKey
from strandline.statemachine.controller.acl import Acl
from tests.clients.wire import Wire
from tests.kafka.handlers.authorized_place import FILTER
from tests.node.one_node import free_port, healthy, started, write_config
from tests.peers.kafka_cluster import KafkaCluster

USERS: Final = ("alice", "bob")
TOPICS: Final = ("t", "u")
GROUPS: Final = ("g", "other")
_PASSWORD: Final = "a word"
_SETTLES_SECONDS: Final = 20.0


class System:
    """One of the two: `admin` is a listener without logins, whose clients may do everything."""

    def __init__(self, name: str, admin: str, logins: str) -> None:
        self.name, self._logins = name, logins
        self.bootstrap = admin
        self._admin = Wire(admin)
        self._acls: tuple[Acl, ...] = ()

    def prepare(self) -> None:
        """The topics, groups with an offset of each, and a transactional id."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for made in admin.create_topics([NewTopic(name, 1, 1) for name in TOPICS]).values():
            made.result(30)
        for group in GROUPS:
            reader = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
            reader.commit(offsets=[TopicPartition(name, 0, 0) for name in TOPICS], asynchronous=False)
            reader.close()
        begin = {"transactional_id": "id", "transaction_timeout": timedelta(minutes=1)}
        deadline = time.monotonic() + _SETTLES_SECONDS
        while True:
            # Kafka makes the topic of transactions when a client looks for a coordinator.
            self._admin.ask(ApiKey.FIND_COORDINATOR, 4, {"key_type": 1, "coordinator_keys": ["id"]})
            asked = {**begin, "producer_id": -1, "producer_epoch": -1}
            if self._admin.ask(ApiKey.INIT_PRODUCER_ID, 4, asked).error_code is ErrorCode.none:
                return
            assert time.monotonic() < deadline, f"{self.name} has no coordinator of transactions"
            time.sleep(0.1)

    def log_in(self, user: str) -> Wire:
        """A connection of a user, by PLAIN."""
        wire = Wire(self._logins)
        handshake = wire.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        assert handshake.error_code is ErrorCode.none
        token = f"\0{user}\0{_PASSWORD}".encode()
        answer = wire.ask(ApiKey.SASL_AUTHENTICATE, 1, {"auth_bytes": token})
        assert answer.error_code is ErrorCode.none, answer
        return wire

    def set_acls(self, acls: Sequence[Acl]) -> None:
        """These entries and no others; returns once the node decides by them."""
        found = self._admin.ask(ApiKey.DELETE_ACLS, 3, {"filters": [FILTER]}).filter_results
        assert all(one.error_code is ErrorCode.none for one in found)
        if acls:
            creations = [
                {
                    "resource_type": int(acl.resource_type), "resource_name": acl.name,
                    "resource_pattern_type": int(acl.pattern_type), "principal": acl.principal,
                    "host": acl.host, "operation": int(acl.operation), "permission_type": int(acl.permission),
                }
                for acl in acls
            ]  # fmt: skip
            made = self._admin.ask(ApiKey.CREATE_ACLS, 3, {"creations": creations}).results
            assert all(one.error_code is ErrorCode.none for one in made), made
        deadline = time.monotonic() + _SETTLES_SECONDS
        while self._count() != len(set(acls)):
            assert time.monotonic() < deadline, f"{self.name} does not have the entries"
            time.sleep(0.005)

    def _count(self) -> int:
        resources = self._admin.ask(ApiKey.DESCRIBE_ACLS, 3, FILTER).resources
        return sum(len(one.acls) for one in resources)

    def close(self) -> None:
        self._admin.__exit__()


@contextlib.contextmanager
def strandline(folder: Path) -> Iterator[System]:
    """A node of this build."""
    folder.mkdir()
    config = write_config(
        folder,
        kafka="""
[listeners.internal]
port = 0
[listeners.logins]
port = 0
protocol = "SASL_PLAINTEXT"
mechanisms = ["PLAIN"]
plain_without_tls = true
[authorization]
enabled = true
super_users = ["User:ANONYMOUS"]
[topics]
replication_factor = 1
""",
    )
    with started(config) as process:
        # It writes a line for each refusal, and would wait for a reader of a pipe that is full.
        assert process.stderr is not None
        threading.Thread(target=process.stderr.read, daemon=True).start()
        told: Any = healthy(folder, process)
        at = {name: f"127.0.0.1:{port}" for name, port in told["listeners"].items()}
        admin = AdminClient({"bootstrap.servers": at["internal"]})
        for user in USERS:
            info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
            upsertion = UserScramCredentialUpsertion(user, info, _PASSWORD.encode())
            for future in admin.alter_user_scram_credentials([upsertion]).values():
                future.result(30)
        system = System("Strandline", at["internal"], at["logins"])
        try:
            system.prepare()
            yield system
        finally:
            system.close()


@contextlib.contextmanager
def kafka(folder: Path) -> Iterator[System]:
    """One node of Kafka, broker and controller, with its StandardAuthorizer. Raises NoKafka."""
    port = free_port()
    users = " ".join(f'user_{user}="{_PASSWORD}"' for user in USERS)
    login = f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
    here = f"PLAINTEXT://127.0.0.1:{{kafka}},SASL_PLAINTEXT://127.0.0.1:{port}"
    cluster = KafkaCluster(
        folder,
        (
            f"listeners={here},CONTROLLER://127.0.0.1:{{mesh}}",
            f"advertised.listeners={here}",
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
            "inter.broker.listener.name=PLAINTEXT",
            "sasl.enabled.mechanisms=PLAIN",
            f"listener.name.sasl_plaintext.plain.sasl.jaas.config={login}",
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users=User:ANONYMOUS",
            "min.insync.replicas=1",
            "transaction.state.log.min.isr=1",
            "transaction.state.log.replication.factor=1",
        ),
        nodes=(1,),
    )
    cluster.up()
    try:
        system = System("Kafka", cluster.bootstrap, f"127.0.0.1:{port}")
        try:
            system.prepare()
            yield system
        finally:
            system.close()
    finally:
        cluster.down()
