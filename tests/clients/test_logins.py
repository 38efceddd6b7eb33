"""Every client by every way in: TLS, certificates, passwords, tokens; right, wrong, ended and missing.

What is refused differs from what is let in by one thing, so no mistake of a driver's looks like a refusal.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from tests.clients.driver import Driver, Refused
from tests.clients.drivers.serve import Way
from tests.clients.matrix import CLIENTS, Drivers
from tests.clients.programs import Missing
from tests.kafka.wire.certificates import Authority
from tests.node.one_node import SECONDS, healthy, started, write_config
from tests.oauth.issuer import AUDIENCE, ISSUER, key_set, token

KCAT: Final = "kcat"
EXPIRED: Final = 'strandline_kafka_connections_closed_total{reason="session_expired"}'
LOGINS: Final = "strandline_kafka_logins_total"


class Case(NamedTuple):
    """One way in, and what comes of it."""

    name: str
    way: Way
    shown: list[str] | None
    """The topics that it is shown; None if it is not let in."""


class Node(NamedTuple):
    """A node with a listener for each way, and the ways that there are."""

    folder: Path
    told: dict[str, Any]
    cases: list[Case]
    lines: list[str]

    def way(self, name: str) -> Way:
        return next(case.way for case in self.cases if case.name == name)

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.told['admin_port']}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(name)), 0.0)


def cases(folder: Path, ours: Authority, theirs: Authority, listeners: dict[str, int]) -> list[Case]:
    """All of them. Alice may be shown one topic, a client without a name all."""
    every, hers = ["harbour", "secret"], ["harbour"]
    own, foreign = ours.issue("alice", common_name="alice"), theirs.issue("alice", common_name="alice")
    ended = ours.issue("ended", common_name="alice", days=-1)
    found: list[Case] = []

    def add(name: str, listener: str, shown: list[str] | None, **more: str) -> None:
        way: Any = {
            "bootstrap": f"127.0.0.1:{listeners[listener]}",
            "protocol": "SASL_SSL" if "mechanism" in more else "SSL",
            "ca": ours.path,
        }
        found.append(Case(name, way | more, shown))

    add("ssl", "public", every)
    add("ssl, another authority", "public", None, ca=theirs.path)
    add("mutual", "mutual", hers, certificate=own.certificate, key=own.key)
    add("mutual, no certificate", "mutual", None)
    add("mutual, ended", "mutual", None, certificate=ended.certificate, key=ended.key)
    add("mutual, another authority", "mutual", None, certificate=foreign.certificate, key=foreign.key)
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"):
        for what, user, password in (
            ("", "alice", "wonderland"), (", wrong password", "alice", "wonderlanD"),
            (", unknown user", "bob", "wonderland"),
        ):  # fmt: skip
            shown = None if what else hers
            add(mechanism + what, "logins", shown, mechanism=mechanism, user=user, password=password)
    add("no login", "logins", None)
    for what, made in (
        ("", token("ec-1")), (", another audience", token("ec-1", aud="other")),
        (", ended", token("ec-1", exp=int(time.time()) - 60)),
        (", another's signature", token("ec-2", headers={"kid": "ec-1"})),
        (", no signature", token("ec-1").rsplit(".", 1)[0] + "."),
    ):  # fmt: skip
        file = folder / f"token{what}"
        file.write_text(made)
        shown = None if what else hers
        add(f"OAUTHBEARER{what}", "tokens", shown, mechanism="OAUTHBEARER", token=str(file))
    add("no token", "tokens", None)
    return found


def configured(folder: Path, ours: Authority) -> Path:
    server = ours.issue("server")
    keys = folder / "keys.json"
    keys.write_bytes(key_set("ec-1"))
    pair = f'port = 0\ncertificate = "{server.certificate}"\nkey = "{server.key}"'
    return write_config(
        folder,
        kafka=f"""
[listeners.internal]
port = 0
[listeners.public]
{pair}
protocol = "SSL"
[listeners.mutual]
{pair}
protocol = "SSL"
ca = "{ours.path}"
client_certificate = "required"
principal_rules = ["RULE:^CN=([^,]+),.*$/$1/"]
[listeners.logins]
{pair}
protocol = "SASL_SSL"
mechanisms = ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"]
[listeners.short]
{pair}
protocol = "SASL_SSL"
mechanisms = ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"]
max_reauth_seconds = "4s"
[listeners.tokens]
{pair}
protocol = "SASL_SSL"
mechanisms = ["OAUTHBEARER"]
oauth_keys = "{keys}"
oauth_issuer = "{ISSUER}"
oauth_audience = "{AUDIENCE}"
[authorization]
enabled = true
super_users = ["User:ANONYMOUS"]
""",
    )


def prepare(bootstrap: str) -> None:
    """Two topics, and alice, who may be shown one of them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    hers = AclBinding(
        ResourceType.TOPIC, "harbour", ResourcePatternType.LITERAL, "User:alice", "*",
        AclOperation.DESCRIBE, AclPermissionType.ALLOW,
    )  # fmt: skip
    made: list[Any] = [
        *admin.create_topics([NewTopic("harbour", 1), NewTopic("secret", 1)]).values(),
        *admin.create_acls([hers]).values(),
    ]
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        one = UserScramCredentialUpsertion("alice", ScramCredentialInfo(mechanism, 4096), b"wonderland")
        made += admin.alter_user_scram_credentials([one]).values()
    for future in made:
        future.result(SECONDS)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("logins")
    ours, theirs = Authority(folder), Authority(folder, "stranger")
    with started(configured(folder, ours)) as process:
        assert process.stderr is not None
        lines: list[str] = []
        errors = process.stderr
        threading.Thread(target=lambda: lines.extend(iter(errors.readline, "")), daemon=True).start()
        told: Any = healthy(folder, process)
        listeners = told["listeners"]
        prepare(f"127.0.0.1:{listeners['internal']}")
        yield Node(folder, told, cases(folder, ours, theirs, listeners), lines)
        process.terminate()
        assert process.wait(SECONDS) == 0
        assert "Traceback" not in "".join(lines)


@pytest.fixture(scope="module")
def started_drivers(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Driver]]:
    """One of each client; those that are not on this machine are left out."""
    drivers = Drivers(f"127.0.0.1:{node.told['listeners']['internal']}", tmp_path_factory.mktemp("drivers"))
    found: dict[str, Driver] = {}
    for name in CLIENTS:
        try:
            found[name] = drivers.take(name)
        except Missing:
            continue
    yield found
    for driver in found.values():
        drivers.give_back(driver)
    drivers.end()


Answers = dict[str, list[str] | str]
"""By a case's name the topics that a client is shown, or how it says that it is not let in."""


def asked(driver: Driver, node: Node) -> Answers:
    answers: Answers = {}
    for case in node.cases:
        try:
            answers[case.name] = driver.ask("log_in", way=case.way)
        except Refused as refused:
            answers[case.name] = refused.code
    return answers


@pytest.fixture(scope="module")
def answers(node: Node, started_drivers: dict[str, Driver]) -> dict[str, Answers]:
    """What each client says to each case. All ask at once: most of it is waiting."""
    with ThreadPoolExecutor(len(CLIENTS)) as pool:
        running = {name: pool.submit(asked, driver, node) for name, driver in started_drivers.items()}
        return {name: one.result() for name, one in running.items()}


@pytest.mark.parametrize("client", CLIENTS)
def test_what_is_right_is_let_in_and_nothing_else(
    node: Node, answers: dict[str, Answers], client: str
) -> None:
    if client not in answers:
        pytest.skip(f"{client} is not on this machine: run scripts/setup --clients")
    shown = {name: sorted(one) if isinstance(one, list) else None for name, one in answers[client].items()}
    assert shown == {case.name: case.shown for case in node.cases}, answers[client]


def test_the_node_says_why(node: Node, answers: dict[str, Answers]) -> None:
    """Each refusal is the node's own, but for the client that does not trust the node."""
    said = "".join(node.lines)
    for words in (
        "showed no certificate", "certificate has expired", "does not trust the authority",
        "user 'alice' is unknown, or its password is wrong", "user 'bob' is unknown", "before its login",
        "InvalidAudienceError", "ExpiredSignatureError", "InvalidSignatureError",
    ):  # fmt: skip
        assert words in said, words
    assert "wonderland" not in said
    assert "eyJ" not in said


def kcat(way: Way) -> list[str] | None:
    names = {
        "protocol": "security.protocol", "ca": "ssl.ca.location", "certificate": "ssl.certificate.location",
        "key": "ssl.key.location", "mechanism": "sasl.mechanism", "user": "sasl.username",
        "password": "sasl.password",
    }  # fmt: skip
    told = [f"-X{names[key]}={value}" for key, value in way.items() if key in names]
    if "token" in way:
        # The version that Debian has makes tokens itself, which have no signature, and takes none.
        told += ["-Xenable.sasl.oauthbearer.unsecure.jwt=true", "-Xsasl.oauthbearer.config=principal=alice"]
    command = [KCAT, "-L", "-m", "2", "-b", way["bootstrap"], *told]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        return None
    return [line.split('"')[1] for line in done.stdout.splitlines() if line.startswith("  topic ")]


def test_kcat_is_let_in_where_it_should_be(node: Node) -> None:
    """In the version that Debian has, of librdkafka 2.0.2: not by SCRAM, and by no token, as at Kafka 4."""
    if shutil.which(KCAT) is None:
        pytest.skip("kcat is not on this machine: run scripts/setup --clients as root, or install kcat")
    with ThreadPoolExecutor(8) as pool:
        shown = dict(
            zip((c.name for c in node.cases), pool.map(lambda c: kcat(c.way), node.cases), strict=True)
        )
    expected = {case.name: case.shown for case in node.cases}
    # librdkafka before 2.6.1 repeats its nonce, which Kafka 4 refuses too (CVE-2024-56128).
    assert any("repeats its nonce, as librdkafka before 2.6.1 does" in line for line in node.lines)
    for name in ("SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"):
        expected[name] = None
    assert any("signed by 'none', which is not taken" in line for line in node.lines)
    assert {name: one and sorted(one) for name, one in shown.items()} == expected


def held(driver: Driver, seconds: float) -> list[str]:
    """Ask again and again; for each answer nothing, or what refused it."""
    heard: list[str] = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        try:
            driver.ask("topics")
            heard.append("")
        except Refused as error:
            heard.append(error.code)
        time.sleep(0.2)
    return heard


def out_after(seconds: float, ask: Callable[[], dict[str, list[str]]]) -> None:
    """All are refused once their sessions have ended; a login that was under way may begin a last one."""
    time.sleep(seconds)
    late = time.monotonic() + 2 * seconds
    told = ask()
    while any("" in heard for heard in told.values()):
        assert time.monotonic() < late, told
        told = ask()


def test_a_token_that_ends_in_a_session_is_followed_by_the_next_or_by_the_connection_s_end(
    node: Node, started_drivers: dict[str, Driver]
) -> None:
    """KIP-368: sessions of some seconds, then a token that is for another cluster, and all are out."""
    file = node.folder / "short"
    way: Way = {**node.way("OAUTHBEARER"), "token": str(file)}

    def write(seconds: float, **changes: Any) -> None:
        made = token("ec-1", exp=int(time.time() + seconds), **changes)
        file.with_suffix(".new").write_text(made)
        file.with_suffix(".new").replace(file)  # a client may read it at any time

    def all_of(ask: Callable[[Driver], Any]) -> dict[str, Any]:
        return dict(zip(started_drivers, pool.map(ask, started_drivers.values()), strict=True))

    write(4)
    with ThreadPoolExecutor(len(CLIENTS)) as pool:
        shown = all_of(lambda driver: driver.ask("log_in", way=way))
        assert shown == {name: ["harbour"] for name in started_drivers}
        logins, ended = node.metric(LOGINS), node.metric(EXPIRED)
        running = {name: pool.submit(held, driver, 6) for name, driver in started_drivers.items()}
        for _ in range(24):
            write(4)  # a second is the least between two logins: no client may find an old token
            time.sleep(0.25)
        heard = {name: one.result() for name, one in running.items()}
        # aiokafka does not log in again; its connection ends, and it makes another.
        again = heard.pop("aiokafka")
        assert set(again) == {"", "KafkaConnectionError"}, again
        assert again.count("") > len(again) / 2
        assert 1 <= node.metric(EXPIRED) - ended <= again.count("KafkaConnectionError")
        assert {name: set(one) for name, one in heard.items()} == {name: {""} for name in heard}
        assert node.metric(LOGINS) - logins > len(heard)
        write(4, aud="other")
        out_after(4, lambda: all_of(lambda driver: held(driver, 0.5)))


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_a_session_that_ends_is_followed_by_the_next_until_the_user_is_gone(
    node: Node, started_drivers: dict[str, Driver], mechanism: str
) -> None:
    """KIP-368 with passwords: sessions of four seconds, then a user that is deleted, and all are out."""
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{node.told['listeners']['internal']}"})
    user = f"of {mechanism}"
    kind = getattr(ScramMechanism, mechanism.replace("-", "_"), ScramMechanism.SCRAM_SHA_256)
    one = UserScramCredentialUpsertion(user, ScramCredentialInfo(kind, 4096), b"wonderland")
    hers = AclBinding(
        ResourceType.TOPIC, "harbour", ResourcePatternType.LITERAL, f"User:{user}", "*",
        AclOperation.DESCRIBE, AclPermissionType.ALLOW,
    )  # fmt: skip
    for made in (admin.alter_user_scram_credentials([one]), admin.create_acls([hers])):
        for future in made.values():
            future.result(SECONDS)
    way: Way = {
        **node.way(mechanism), "user": user,
        "bootstrap": f"127.0.0.1:{node.told['listeners']['short']}",
    }  # fmt: skip

    def all_of(ask: Callable[[Driver], Any]) -> dict[str, Any]:
        return dict(zip(started_drivers, pool.map(ask, started_drivers.values()), strict=True))

    with ThreadPoolExecutor(len(CLIENTS)) as pool:
        shown = all_of(lambda driver: driver.ask("log_in", way=way))
        assert shown == {name: ["harbour"] for name in started_drivers}
        logins = node.metric(LOGINS)
        heard = all_of(lambda driver: held(driver, 5))
        again = heard.pop("aiokafka")
        assert set(again) <= {"", "KafkaConnectionError"}, again
        assert again.count("") > len(again) / 2
        assert {name: set(one) for name, one in heard.items()} == {name: {""} for name in heard}
        assert node.metric(LOGINS) - logins >= len(heard)
        for future in admin.alter_user_scram_credentials([UserScramCredentialDeletion(user, kind)]).values():
            future.result(SECONDS)
        out_after(4, lambda: all_of(lambda driver: held(driver, 0.5)))
