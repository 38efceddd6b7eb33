"""Decisions beside Kafka's: the same random ACLs and questions to its StandardAuthorizer and to ours."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Final

import pytest

from strandline.node.config.authorization import AuthorizationSection
from strandline.node.kafka.handlers.authorizer import Authorizer
from strandline.statemachine.controller.acl import Acl, Operation, PatternType, Permission, ResourceType
from strandline.statemachine.controller.acl_set import AclSet
from tests.peers.kafka_jars import NoKafka, java, present

PROGRAM: Final = Path(__file__).parents[2] / "peers" / "StandardDecisions.java"
SETS: Final = 400
SECONDS: Final = 120.0
NAMES: Final = ("a", "ab", "abc", "abd", "b", "orders", "*", "a*")
KINDS: Final = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
OPERATIONS: Final = (
    Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER,
    Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
)  # fmt: skip
HOSTS: Final = ("10.0.0.1", "10.0.0.2")


def random_acl(rng: random.Random) -> Acl:
    return Acl(
        rng.choice(KINDS),
        rng.choice(NAMES),
        rng.choice((PatternType.LITERAL, PatternType.PREFIXED)),
        rng.choice(("User:alice", "User:bob", "User:*", "Group:alice")),
        rng.choice(("*", *HOSTS)),
        rng.choice((*OPERATIONS, Operation.ALL)),
        rng.choice((Permission.ALLOW, Permission.ALLOW, Permission.DENY)),
    )


def asked() -> tuple[list[str], str]:
    """Lines for Kafka's side, and our decisions."""
    rng, lines, decided = random.Random(19), [], ""
    for number in range(SETS):
        everyone = number % 4 == 0
        acls = AclSet(random_acl(rng) for _ in range(rng.randrange(12)))
        lines.append(f"set {str(everyone).lower()}")
        lines += [f"acl {' '.join(str(int(x)) if isinstance(x, int) else x for x in acl)}" for acl in acls]
        lines.append("loaded")
        settings = AuthorizationSection(True, ("User:root",), everyone)
        ours = Authorizer(lambda acls=acls: acls, settings)  # type: ignore[misc]
        for _ in range(60):
            user, host = rng.choice(("alice", "bob", "root")), rng.choice(HOSTS)
            kind, operation = rng.choice(KINDS), rng.choice(OPERATIONS)
            line = f"may {user} {host} {int(operation)} {int(kind)}"
            if rng.random() < 0.2:
                allowed = ours.allows_some(f"User:{user}", host, operation, kind)
            else:
                name = rng.choice((*NAMES, "abcd", "z"))
                allowed = ours.allows(f"User:{user}", host, operation, kind, name)
                line += f" {name}"
            lines.append(line)
            decided += str(int(allowed))
    return lines, decided


def test_kafka_s_authorizer_decides_the_same() -> None:
    try:
        libs, program = present(), java()
    except NoKafka as missing:
        pytest.skip(str(missing))
    if libs is None:
        pytest.skip("Kafka's jars are not on this machine: run scripts/setup --clients")
    lines, decided = asked()
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    ran = subprocess.run(
        [program, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", quiet, "-cp", f"{libs}/*", str(PROGRAM)],
        input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    theirs = ran.stdout.strip()
    questions = [line for line in lines if line.startswith("may")]
    assert len(theirs) == len(decided) == len(questions) == SETS * 60
    differing = [one for one, ours, other in zip(questions, decided, theirs, strict=True) if ours != other]
    assert differing == []
    assert 0.2 < decided.count("1") / len(decided) < 0.8
