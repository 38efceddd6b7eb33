"""The same random access control and the same requests to Strandline and to Apache Kafka: `scripts/access`.

Two users send a request of each kind to both. What is refused has to be the same, by the same codes, and so
has what is shown: names of topics, groups and transactional ids, and the operations that a client is told it
may do. Other codes (a group that is not there) are the systems' own, and count as let through.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.serial.errors import SerialError

from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.statemachine.controller.acl import (
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    fault,
)
from tests.clients.wire import Closed, Wire, fetch, produce
from tests.kafka.handlers.authorized_place import FILTER, REQUESTS
from tests.kafka.wire.batches import build
from tests.peers.kafka_jars import NoKafka
from tests.programs.access.systems import USERS, System, kafka, strandline

NAMES: Final = ("t", "u", "id", "g", "other", "absent", "new", "c", "h", "*", "kafka-cluster")
KINDS: Final = (
    ResourceType.TOPIC, ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID,
    ResourceType.CLUSTER,
)  # fmt: skip
VERSIONS: Final = {ApiKey.METADATA: 10, ApiKey.ADD_PARTITIONS_TO_TXN: 3, ApiKey.PRODUCE: 9, ApiKey.FETCH: 11}
"""Where the last that both speak is not the one that has most to refuse."""
_NAMED: Final = frozenset(
    ("name", "topic", "topic_name", "group_id", "transactional_id", "resource_name", "key")
)
_OWN_NAMES: Final = frozenset((ApiKey.DESCRIBE_CONFIGS, ApiKey.DESCRIBE_QUORUM, ApiKey.LIST_CONFIG_RESOURCES))
"""Their answers name settings, listeners and kinds of resources that each system has for itself."""
Seen = Counter[tuple[Any, ...]]


def requests() -> dict[ApiKey, list[dict[str, Any]]]:
    """One of each kind at least; what they do does not change what later ones are answered."""
    soon = timedelta(seconds=1)
    where = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    records = build()
    return {
        **{key: [dict(one) for one in asked] for key, asked in REQUESTS.items()},
        ApiKey.METADATA: [
            {"topics": None, "allow_auto_topic_creation": False, **where},
            *({**one, **where, "allow_auto_topic_creation": False} for one in REQUESTS[ApiKey.METADATA]),
        ],
        ApiKey.PRODUCE: [{**produce("t", records), "transactional_id": None}],
        ApiKey.FETCH: [fetch("t")],
        ApiKey.LIST_OFFSETS: [
            {"replica_id": -1, "isolation_level": 0, "timeout": soon, "topics": [
                {"name": "u", "partitions": [
                    {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]}]}
        ],
        ApiKey.DELETE_TOPICS: [{"topics": [{"name": "absent", "topic_id": None}], "timeout": soon}],
        ApiKey.DELETE_ACLS: [{"filters": [{**FILTER, "resource_name_filter": "there is none"}]}],
        ApiKey.CREATE_TOPICS: [{**REQUESTS[ApiKey.CREATE_TOPICS][0], "timeout": timedelta(seconds=5)}],
        ApiKey.DELETE_GROUPS: [{"groups_names": ["absent"]}],
        # A group that is there: Kafka makes another one for the first request of its first member.
        ApiKey.JOIN_GROUP: [{**REQUESTS[ApiKey.JOIN_GROUP][0], "group_id": "other"}],
        ApiKey.CREATE_ACLS: [],
        # Kafka 4.1 does not answer one without names that it refuses.
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: [{"users": [{"name": "alice"}]}],
        ApiKey.ALTER_CLIENT_QUOTAS: [
            {**REQUESTS[ApiKey.ALTER_CLIENT_QUOTAS][0], "validate_only": True}
        ],
    }  # fmt: skip


def random_acls(rng: random.Random) -> list[Acl]:
    """Up to a dozen that both take."""
    found = []
    for _ in range(rng.randrange(13)):
        kind = rng.choice(KINDS)
        name = "kafka-cluster" if kind is ResourceType.CLUSTER and rng.random() < 0.9 else rng.choice(NAMES)
        pattern = PatternType.PREFIXED if rng.random() < 0.3 and name != "*" else PatternType.LITERAL
        if kind is ResourceType.CLUSTER:
            pattern, name = PatternType.LITERAL, "kafka-cluster"
        acl = Acl(
            kind, name, pattern, rng.choice(("User:alice", "User:bob", "User:*")),
            rng.choice(("*", "*", "127.0.0.1", "10.0.0.1")), rng.choice(list(Operation)[1:]),
            rng.choice((Permission.ALLOW, Permission.ALLOW, Permission.ALLOW, Permission.DENY)),
        )  # fmt: skip
        if fault(acl) is None:
            found.append(acl)
    return list(dict.fromkeys(found))


def seen(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """What an answer refuses and shows, each with the names around it."""
    if isinstance(value, (tuple, list)):
        for each in value:
            yield from seen(each, place)
        return
    if not is_dataclass(value) or isinstance(value, type):
        return
    told = {field.name: getattr(value, field.name) for field in fields(value)}
    names = [str(told[name]) for name in sorted(told.keys() & _NAMED) if told[name] is not None]
    if any(name.startswith("__") for name in names):
        return  # each system's own topics
    inside = (*place, *names)
    if names:
        yield ("shown", *inside)
    for name, found in told.items():
        if name == "topic_config_error_code":
            found = ErrorCode(found)
        if isinstance(found, ErrorCode) and found.name.endswith("authorization_failed"):
            yield (name, *inside, found.name)
        elif name.endswith("authorized_operations"):
            yield (name, *inside, found)
        else:
            yield from seen(found, inside)


def answer(wire: Wire, key: ApiKey, asked: dict[str, Any]) -> Seen:
    version = VERSIONS.get(key, APIS[key].last)
    try:
        told = seen(wire.ask(key, version, asked))
        return Counter(one for one in told if one[0] != "shown" or key not in _OWN_NAMES)
    except Closed:
        return Counter([("closed",)])
    except SerialError:  # kio reads no time of -1, which a transaction has that has not begun
        return Counter([("not read",)])
    except TimeoutError as error:
        raise TimeoutError(f"{wire.socket.getpeername()}: no answer to {key.name} {version}") from error


class Comparison:
    """All that was asked, and the answers that differ."""

    def __init__(self, ours: System, theirs: System) -> None:
        self._systems = (ours, theirs)
        self._requests = requests()
        self.asked = self.refusals = 0
        self.differing: list[str] = []

    def compare(self, acls: list[Acl], number: int) -> None:
        """Ask everything under one set of entries."""
        for system in self._systems:
            try:
                system.set_acls(acls)
            except TimeoutError as error:
                raise TimeoutError(f"{system.name} does not take set {number}: {acls}") from error
        for user in USERS:
            wires = [system.log_in(user) for system in self._systems]
            try:
                for key, several in self._requests.items():
                    for asked in several:
                        self._one(f"set {number}, {user}", wires, key, asked)
            finally:
                for wire in wires:
                    wire.__exit__()

    def _one(self, where: str, wires: list[Wire], key: ApiKey, asked: dict[str, Any]) -> None:
        ours, theirs = (answer(wire, key, asked) for wire in wires)
        self.asked += 1
        self.refusals += any("authorization_failed" in str(one[-1]) for one in theirs)
        if ours != theirs:
            self.differing.append(
                f"{where}, {key.name}: only here {sorted(map(str, ours - theirs))}, "
                f"only Kafka {sorted(map(str, theirs - ours))}"
            )


def main(arguments: list[str]) -> int:
    """Compare; exits 1 where an answer differs, 2 without Kafka."""
    parser = argparse.ArgumentParser(prog="scripts/access", description=__doc__)
    parser.add_argument("--sets", type=int, default=200, help="random sets of ACLs")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    began, rng = time.monotonic(), random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="strandline-access-") as scratch:
        folder = Path(scratch)
        try:
            with kafka(folder / "kafka") as theirs, strandline(folder / "strandline") as ours:
                comparison = Comparison(ours, theirs)
                for number in range(options.sets):
                    comparison.compare(random_acls(rng), number)
        except NoKafka as missing:
            print(f"access: {missing}", file=sys.stderr)
            return 2
    for line in comparison.differing[:50]:
        print(line)
    state = "FAILED" if comparison.differing else "ok"
    print(
        f"access {state}: {options.sets} sets of ACLs, {comparison.asked} requests to both, "
        f"{comparison.refusals} with something refused, {len(comparison.differing)} answered otherwise, "
        f"{time.monotonic() - began:.0f} s"
    )
    return int(bool(comparison.differing))
