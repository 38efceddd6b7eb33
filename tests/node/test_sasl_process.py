"""Real clients that log in at a real node: right, wrong and unknown, and users by Kafka's own requests."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBindingFilter,
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

from strandline.node.views import view_login
from tests.clients.one_java import ToolsInOneJava
from tests.clients.programs import Missing
from tests.kafka.wire.certificates import Authority
from tests.node.one_node import SECONDS, SECRET, healthy, started, write_config
from tests.node.there_and_back import there_and_back
from tests.oauth.issuer import AUDIENCE, ISSUER, key_set, token
from tests.peers.kafka_jars import NoKafka
from tests.peers.kafka_tools import KafkaTools

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas with importlib's old functions
    from kafka import KafkaAdminClient  # type: ignore[import-untyped]
    from kafka.errors import KafkaError as PythonKafkaError  # type: ignore[import-untyped]

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
ANY: Any = None  # what the class takes for it, and its types have not
EVERY_ACL = AclBindingFilter(
    ResourceType.ANY, ANY, ResourcePatternType.ANY, ANY, ANY, AclOperation.ANY, AclPermissionType.ANY
)
MECHANISMS = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}


@dataclass
class Node:
    """A node with a listener on loopback for administrators, and two for clients that log in."""

    folder: Path
    ca: str
    told: dict[str, Any]
    lines: list[str]

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self.told['listeners'][listener]}"

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address("internal")})

    def add(self, user: str, password: str, mechanism: str = "SCRAM-SHA-256") -> None:
        upsertion = UserScramCredentialUpsertion(
            user, ScramCredentialInfo(MECHANISMS[mechanism], 4096), password.encode()
        )
        admin = self.admin()  # what it has begun ends with it
        for future in admin.alter_user_scram_credentials([upsertion]).values():
            future.result(SECONDS)

    def says(self, words: str) -> str:
        """Wait for a line of the node's log."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            for line in self.lines:
                if words in line:
                    return line
            time.sleep(0.05)
        raise AssertionError(f"the node never says {words!r}: {self.lines}")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("sasl")
    authority = Authority(folder)
    server = authority.issue("server")
    keys = folder / "keys.json"
    keys.write_bytes(key_set("rsa-1", "ec-1"))
    config = write_config(
        folder,
        kafka=f"""
[listeners.internal]
port = 0
[listeners.public]
port = 0
protocol = "SASL_SSL"
certificate = "{server.certificate}"
key = "{server.key}"
nodes_ca = "{authority.path}"
mechanisms = ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"]
[listeners.tokens]
port = 0
protocol = "SASL_SSL"
certificate = "{server.certificate}"
key = "{server.key}"
mechanisms = ["OAUTHBEARER"]
oauth_keys = "{keys}"
oauth_issuer = "{ISSUER}"
oauth_audience = "{AUDIENCE}"
[listeners.plaintext]
port = 0
protocol = "SASL_PLAINTEXT"
[listeners.short]
port = 0
protocol = "SASL_PLAINTEXT"
max_reauth_seconds = "2s"
[authorization]
enabled = true
super_users = ["User:ANONYMOUS", "User:alice"]
""",
    )
    with started(config) as process:
        lines: list[str] = []
        assert process.stderr is not None
        errors = process.stderr
        threading.Thread(target=lambda: lines.extend(iter(errors.readline, "")), daemon=True).start()
        made = Node(folder, authority.path, healthy(folder, process), lines)
        made.add("alice", "wonderland")
        made.add("alice", "wonderland-512", "SCRAM-SHA-512")
        yield made
        process.terminate()
        assert process.wait(SECONDS) == 0


def librdkafka(node: Node, listener: str, mechanism: str, user: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": node.address(listener),
        "security.protocol": "SASL_SSL" if listener == "public" else "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        "ssl.ca.location": node.ca,
        "log_level": 0,
    }


REFUSED_SECONDS = 4.0
"""So long a client that is to be refused goes on trying; one that is to be let in has SECONDS."""


def by_librdkafka(
    node: Node, listener: str, mechanism: str, user: str, password: str, seconds: float = SECONDS
) -> bool:
    refusals: list[Any] = []
    settings: dict[str, Any] = librdkafka(node, listener, mechanism, user, password)
    client = AdminClient(settings | {"error_cb": refusals.append})
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(KafkaException):
            client.list_topics(timeout=0.3)
            return True
        client.poll(0)
        if any(error.code() == KafkaError._AUTHENTICATION for error in refusals):
            return False
    return False


def by_kafka_python(
    node: Node, listener: str, mechanism: str, user: str, password: str, seconds: float = SECONDS
) -> bool:
    try:
        client = KafkaAdminClient(
            bootstrap_servers=node.address(listener),
            security_protocol="SASL_SSL" if listener == "public" else "SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_plain_username=user,
            sasl_plain_password=password,
            ssl_cafile=node.ca,
            bootstrap_timeout_ms=int(1000 * seconds),
        )
    except PythonKafkaError:
        return False
    try:
        client.list_topics()
    finally:
        client.close()
    return True


CLIENTS = pytest.mark.parametrize("let_in", [by_librdkafka, by_kafka_python])
LetIn = Callable[..., bool]


@CLIENTS
@pytest.mark.parametrize(
    ("listener", "mechanism", "password"),
    [
        ("public", "SCRAM-SHA-256", "wonderland"),
        ("public", "SCRAM-SHA-512", "wonderland-512"),
        ("public", "PLAIN", "wonderland"),
        ("plaintext", "SCRAM-SHA-256", "wonderland"),
        ("plaintext", "SCRAM-SHA-512", "wonderland-512"),
    ],
)
def test_the_right_password_is_let_in(
    node: Node, let_in: LetIn, listener: str, mechanism: str, password: str
) -> None:
    assert let_in(node, listener, mechanism, "alice", password)


@CLIENTS
@pytest.mark.parametrize(
    ("listener", "mechanism", "user", "line"),
    [
        (
            "public",
            "SCRAM-SHA-256",
            "alice",
            "public: a login failed: user 'alice' is unknown, or its password",
        ),
        (
            "public",
            "SCRAM-SHA-512",
            "mallory",
            "public: a login failed: user 'mallory' is unknown, or its password",
        ),
        (
            "public",
            "PLAIN",
            "alice",
            "public: a login failed: user 'alice' is unknown, or its password",
        ),
        (
            "plaintext",
            "PLAIN",
            "alice",
            "plaintext: SASL mechanism 'PLAIN' is not one of SCRAM-SHA-256, SCRAM",
        ),
    ],
)
def test_what_is_wrong_is_refused_with_a_line_that_says_why(
    node: Node, let_in: LetIn, listener: str, mechanism: str, user: str, line: str
) -> None:
    node.lines.clear()
    assert not let_in(node, listener, mechanism, user, "wrong", REFUSED_SECONDS)
    said = node.says(line)
    assert "wonderland" not in said


def test_a_client_that_does_not_log_in_is_told_nothing(node: Node) -> None:
    node.lines.clear()
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": node.address("plaintext"), "log_level": 0}).list_topics(timeout=2)
    node.says("listener plaintext: the client sent METADATA before its login")


def test_records_go_through_and_come_back(node: Node) -> None:
    settings = librdkafka(node, "public", "SCRAM-SHA-512", "alice", "wonderland-512")
    values = [f"{number}".encode() * 1000 for number in range(200)]
    assert there_and_back(settings, "through-sasl", values) == values


def token_by_librdkafka(node: Node, bearer: str, ends: float) -> dict[str, Any]:
    return {
        "bootstrap.servers": node.address("tokens"),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (bearer, ends, "alice", {}),
        "ssl.ca.location": node.ca,
        "log_level": 0,
    }


def test_librdkafka_logs_in_with_a_token(node: Node) -> None:
    ends = time.time() + 600
    settings = token_by_librdkafka(node, token("ec-1"), ends)
    values = [f"{number}".encode() * 100 for number in range(50)]
    assert there_and_back(settings, "through-tokens", values) == values
    node.lines.clear()
    wrong = Producer(token_by_librdkafka(node, token(aud="other"), ends))
    with pytest.raises(KafkaException):
        wrong.list_topics(timeout=2)
    assert "eyJ" not in node.says("listener tokens: a login failed: the token is not right: InvalidAudience")


def test_java_logs_in_with_a_token(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        tools = KafkaTools(node.address("tokens"))
    except NoKafka as missing:
        pytest.skip(str(missing))
    bearer = tmp_path / "token"
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://{bearer}"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", allowed)
    package = "org.apache.kafka.common.security.oauthbearer"
    settings = tmp_path / "client.properties"
    settings.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={node.ca}\n"
        f"sasl.login.callback.handler.class={package}.OAuthBearerLoginCallbackHandler\n"
        f"sasl.oauthbearer.token.endpoint.url=file://{bearer}\n"
        f"sasl.jaas.config={package}.OAuthBearerLoginModule required;\n"
    )
    for made, let_in in ((token(), True), (token(aud="other"), False)):
        bearer.write_text(made)
        ran = tools.run(tools.topics("--list", "--command-config", str(settings)))
        assert (ran.code == 0) == let_in, ran.err
    assert "invalid_token" in ran.out + ran.err or "SaslAuthenticationException" in ran.out + ran.err


def test_users_come_and_go_by_kafka_s_requests(node: Node) -> None:
    node.add("bob", "one")
    assert by_librdkafka(node, "public", "SCRAM-SHA-256", "bob", "one")
    node.add("bob", "two")
    assert not by_librdkafka(node, "public", "SCRAM-SHA-256", "bob", "one")
    assert by_librdkafka(node, "public", "SCRAM-SHA-256", "bob", "two")
    admin = node.admin()
    described: Any = admin.describe_user_scram_credentials(["bob"])
    described = described["bob"].result(SECONDS)
    (info,) = described.scram_credential_infos
    assert (info.mechanism, info.iterations) == (ScramMechanism.SCRAM_SHA_256, 4096)
    deletion = UserScramCredentialDeletion("bob", ScramMechanism.SCRAM_SHA_256)
    for future in admin.alter_user_scram_credentials([deletion]).values():
        future.result(SECONDS)
    assert not by_librdkafka(node, "public", "SCRAM-SHA-256", "bob", "two")


def test_commands_log_in_and_change_acls(node: Node, tmp_path: Path) -> None:
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"

    def properties(user: str, password: str) -> Path:
        path = tmp_path / f"{user}.properties"
        path.write_text(
            f"# of {user}\nbootstrap.servers={node.address('public')}\nsecurity.protocol=SASL_SSL\n"
            "sasl.mechanism=SCRAM-SHA-256\nssl.truststore.type=PEM\n"
            f"ssl.truststore.location={node.ca}\n"
            f'sasl.jaas.config={login} username="{user}" \\\n    password="{password}";\n'
        )
        path.chmod(0o600)
        return path

    def strandline(user: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                sys.executable, "-m", "strandline", "--config", str(tmp_path / f"{user}.properties"),
                *arguments,
            ],
            input=stdin, capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip

    properties("alice", "wonderland")
    properties("fred", "yabba,dabba=doo")
    node.add("fred", "yabba,dabba=doo")
    made = strandline("alice", "topic", "create", "quarry")
    assert made.returncode == 0, made.stderr
    denied = strandline("fred", "produce", "quarry", stdin="stone\n")
    assert (denied.returncode, "authorization failed" in denied.stderr.lower()) == (1, True), denied.stderr
    added = strandline("alice", "acl", "add", "User:fred", "write", "topic:quarry")
    assert (added.returncode, added.stdout) == (0, "User:fred may write topic:quarry\n"), added.stderr
    written = strandline("fred", "produce", "quarry", stdin="stone\n")
    assert written.returncode == 0, written.stderr
    listed = json.loads(strandline("alice", "acl", "list", "--json").stdout)["acls"]
    row = {
        "resource": "topic:quarry", "prefix": False, "principal": "User:fred", "permission": "allow",
        "operation": "write", "host": "*",
    }  # fmt: skip
    assert row in listed
    assert "no entries" in strandline("fred", "acl", "list").stdout
    refused = strandline("fred", "acl", "add", "User:fred", "all", "cluster")
    assert (refused.returncode, "CLUSTER_AUTHORIZATION_FAILED" in refused.stderr) == (1, True)
    gone = strandline("alice", "acl", "remove", "User:fred", "write", "topic:quarry")
    assert gone.returncode == 0, gone.stderr
    again = strandline("alice", "acl", "remove", "User:fred", "write", "topic:quarry")
    assert (again.returncode, "there is no such entry" in again.stderr) == (1, True)
    properties("alice", "wrong")
    began = time.monotonic()
    wrong = strandline("alice", "topic", "list")
    assert wrong.returncode == 1
    assert "does not accept the login of --config" in wrong.stderr
    assert time.monotonic() - began < 15


def test_commands_log_in_with_a_token(node: Node, tmp_path: Path) -> None:
    bearer = tmp_path / "token"
    bearer.touch(0o600)
    file = tmp_path / "client.properties"
    file.write_text(
        f"bootstrap.servers={node.address('tokens')}\nsecurity.protocol=SASL_SSL\n"
        f"sasl.mechanism=OAUTHBEARER\nssl.ca.location={node.ca}\n"
        f"sasl.oauthbearer.token.endpoint.url={bearer.as_uri()}\n"
    )

    def strandline(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "strandline", "--config", str(file), *arguments],
            input=stdin, capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip

    bearer.write_text(token("ec-1"))
    made = strandline("topic", "create", "by-token")
    assert made.returncode == 0, made.stderr
    written = strandline("produce", "by-token", stdin="one\n")
    assert written.returncode == 0, written.stderr
    listed = strandline("acl", "list", "--json")
    assert listed.returncode == 0, listed.stderr
    bearer.write_text(token("ec-1", aud="other"))
    for arguments in (("topic", "list"), ("acl", "list"), ("quota", "list")):
        wrong = strandline(*arguments)
        assert (wrong.returncode, "eyJ" in wrong.stderr) == (1, False)
        assert "login of --config" in wrong.stderr or "the token of --config" in wrong.stderr, wrong.stderr


def test_the_command_makes_the_first_user(node: Node) -> None:
    def strandline(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        where = ("--bootstrap", node.address("internal"))
        return subprocess.run(
            [sys.executable, "-m", "strandline", "user", *arguments, *where],
            input=stdin, capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip

    made = strandline("add", "dora", stdin="explorer\n")
    assert (made.returncode, made.stdout) == (0, "dora may log in by SCRAM-SHA-256\n"), made.stderr
    made = strandline("add", "dora", "--mechanism", "SCRAM-SHA-512", stdin="explorer-512\n")
    assert made.returncode == 0, made.stderr
    assert by_librdkafka(node, "public", "SCRAM-SHA-256", "dora", "explorer")
    assert by_librdkafka(node, "plaintext", "SCRAM-SHA-512", "dora", "explorer-512")
    listed = json.loads(strandline("list", "--json").stdout)["users"]
    assert {"user": "dora", "mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"]} in listed
    assert strandline("remove", "dora").returncode == 0
    assert not by_librdkafka(node, "public", "SCRAM-SHA-256", "dora", "explorer")
    gone = strandline("remove", "dora")
    assert (gone.returncode, "there is no user dora" in gone.stderr) == (1, True)
    empty = strandline("add", "dora", stdin="\n")
    assert (empty.returncode, "the password has 0 characters" in empty.stderr) == (2, True)


@pytest.fixture(scope="module")
def tools(node: Node) -> Iterator[KafkaTools]:
    try:
        started = ToolsInOneJava(node.address("internal"), node.folder / "tools.log")
    except (NoKafka, Missing) as missing:
        pytest.skip(str(missing))
    yield started
    started.end()


def test_kafka_configs_makes_and_describes_users(node: Node, tools: KafkaTools) -> None:
    user = ("--entity-type", "users", "--entity-name", "carol")
    other = (*user[:3], "caroline")
    twice = "SCRAM-SHA-256=[password=chess],SCRAM-SHA-512=[iterations=8192,password=chess-512]"
    made, few, every, unknown = tools.together(
        [
            tools.configs("--alter", "--add-config", twice, *user),
            tools.configs("--alter", "--add-config", "SCRAM-SHA-256=[iterations=100,password=a]", *other),
            tools.configs("--alter", "--add-config", twice, "--entity-type", "users", "--entity-default"),
            tools.configs("--alter", "--delete-config", "SCRAM-SHA-256", *other),
        ]
    )
    assert (made.code, "Completed updating config" in made.out) == (0, True), made
    for refused, why in (
        (few, "Iterations 100 is less than the minimum 4096"),
        (every, "default"),
        (unknown, "Attempt to delete a user credential that does not exist"),
    ):
        assert (refused.code, why in refused.out + refused.err) == (1, True), refused
    assert by_librdkafka(node, "public", "SCRAM-SHA-256", "carol", "chess")
    assert by_librdkafka(node, "public", "SCRAM-SHA-512", "carol", "chess-512")
    told, all_told, quota = tools.together(
        [
            tools.configs("--describe", *user),
            tools.configs("--describe", "--entity-type", "users"),
            tools.configs("--alter", "--add-config", "consumer_byte_rate=5000", *user),
        ]
    )
    for shown in (told, all_told):
        (line,) = [one for one in shown.lines if one.startswith("SCRAM") and "'carol'" in one]
        assert line.startswith("SCRAM credential configs for user-principal 'carol' are ")
        assert sorted(line.partition(" are ")[2].split(", ")) == [
            "SCRAM-SHA-256=iterations=4096", "SCRAM-SHA-512=iterations=8192",
        ]  # fmt: skip
    assert quota.code == 0, quota
    gone = tools.run(tools.configs("--alter", "--delete-config", "SCRAM-SHA-256,SCRAM-SHA-512", *user))
    assert gone.code == 0, gone
    assert not by_librdkafka(node, "public", "SCRAM-SHA-256", "carol", "chess")
    (left,) = tools.together([tools.configs("--describe", *user)])
    assert "Quota configs for user-principal 'carol' are consumer_byte_rate=5000.0" in left.out
    assert "SCRAM credential configs" not in left.out
    assert tools.run(tools.configs("--alter", "--delete-config", "consumer_byte_rate", *user)).code == 0


def test_kafka_acls_lets_a_user_in_and_out(node: Node, tools: KafkaTools) -> None:
    node.add("erin", "ledger-keeper")
    settings = librdkafka(node, "public", "SCRAM-SHA-256", "erin", "ledger-keeper")
    admin, client = node.admin(), AdminClient(settings)
    made: Any = admin.create_topics([NewTopic("ledger", 1)])
    made["ledger"].result(SECONDS)

    def seen() -> set[str]:
        return set(client.list_topics(timeout=SECONDS).topics)

    def written() -> str | None:
        """The name of the error of one record."""
        errors: list[Any] = []
        producer = Producer({**settings, "message.timeout.ms": 20_000})
        producer.produce("ledger", b"one", on_delivery=lambda error, _: errors.append(error))
        producer.flush(SECONDS)
        (error,) = errors
        return None if error is None else str(error.name())

    assert "ledger" not in seen()
    assert written() == "TOPIC_AUTHORIZATION_FAILED"
    erin = ("--allow-principal", "User:erin")
    prefixed = ("--consumer", "--group", "audit", "--resource-pattern-type", "prefixed")
    *done, odd, nothing = tools.together(
        [
            tools.acls("--add", *erin, "--topic", "ledger", "--producer"),
            tools.acls("--add", *erin, "--topic", "ledger", *prefixed),
            tools.acls("--add", "--deny-principal", "User:erin", "--deny-host", "10.9.8.7",
                       "--operation", "Alter", "--cluster"),
            tools.acls("--add", *erin, "--operation", "IdempotentWrite", "--group", "audit"),
            tools.acls("--remove", "--force", *erin, "--topic", "nothing-of-this-name"),
        ]
    )  # fmt: skip
    assert [one.code for one in done] == [0, 0, 0], done
    assert (odd.code, "GROUP only supports operations" in odd.out + odd.err) == (1, True), odd
    assert nothing.code == 0, "it removes what there is, and there is nothing"
    by_user, by_topic, by_cluster = tools.together(
        [
            tools.acls("--list", "--principal", "User:erin"),
            tools.acls("--list", "--topic", "ledger", "--resource-pattern-type", "match"),
            tools.acls("--list", "--cluster"),
        ]
    )
    assert "name=audit" not in by_topic.out
    assert "operation=WRITE" in by_topic.out
    denied = "(principal=User:erin, host=10.9.8.7, operation=ALTER, permissionType=DENY)"
    assert denied in by_cluster.out
    listed = by_user.out
    assert "(principal=User:erin, host=*, operation=WRITE, permissionType=ALLOW)" in listed
    assert "name=audit, patternType=PREFIXED" in listed
    assert "ledger" in seen()
    assert written() is None
    consumer = Consumer({**settings, "group.id": "audit-7", "auto.offset.reset": "earliest"})
    consumer.subscribe(["ledger"])
    record = consumer.consume(1, SECONDS)[0]
    assert (record.error(), record.value()) == (None, b"one")
    consumer.close()
    stranger = Consumer({**settings, "group.id": "other", "auto.offset.reset": "earliest"})
    stranger.subscribe(["ledger"])
    refused = stranger.consume(1, SECONDS)[0].error()
    assert refused is not None
    assert refused.name() == "GROUP_AUTHORIZATION_FAILED"
    stranger.close()
    with pytest.raises(KafkaException, match="CLUSTER_AUTHORIZATION_FAILED"):
        client.delete_acls([EVERY_ACL])[EVERY_ACL].result(SECONDS)
    gone = tools.together(
        [
            tools.acls("--remove", "--force", *erin, "--topic", "ledger", "--producer"),
            tools.acls("--remove", "--force", "--deny-principal", "User:erin", "--deny-host", "10.9.8.7",
                       "--operation", "Alter", "--cluster"),
        ]
    )  # fmt: skip
    assert [one.code for one in gone] == [0, 0], gone
    assert written() == "TOPIC_AUTHORIZATION_FAILED"
    kept: Any = admin.describe_acls(EVERY_ACL).result(SECONDS)
    assert {(one.name, one.operation.name) for one in kept if one.principal == "User:erin"} == {
        ("audit", "READ"), ("ledger", "READ"), ("ledger", "DESCRIBE"),
    }  # fmt: skip


def test_a_java_client_logs_in(node: Node, tmp_path: Path) -> None:
    try:
        tools = KafkaTools(node.address("public"))
    except NoKafka as missing:
        pytest.skip(str(missing))
    for password, let_in in (("wonderland", True), ("wrong", False)):
        login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
        settings = tmp_path / "client.properties"
        settings.write_text(
            "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\nssl.truststore.type=PEM\n"
            f"ssl.truststore.location={node.ca}\n"
            f'sasl.jaas.config={login} username="alice" password="{password}";\n'
        )
        ran = tools.run(tools.topics("--list", "--command-config", str(settings)))
        assert (ran.code == 0) == let_in, ran.err
        if not let_in:
            assert "SaslAuthenticationException" in ran.out + ran.err


def test_clients_log_in_again_before_their_login_ends(node: Node, tmp_path: Path) -> None:
    """For five seconds, of which a login counts for two; users that are gone are out by then."""

    def metric(name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{node.told['admin_port']}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(name)), 0.0)

    expired = 'strandline_kafka_connections_closed_total{reason="session_expired"}'
    settings = librdkafka(node, "short", "SCRAM-SHA-256", "alice", "wonderland")
    admin = node.admin()
    made: Any = admin.create_topics([NewTopic("again", 1)])
    made["again"].result(SECONDS)
    java: list[Any] = []
    try:
        tools = KafkaTools(node.address("short"))
    except NoKafka:
        waiting = None
    else:
        login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
        file = tmp_path / "client.properties"
        file.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nauto.offset.reset=earliest\n"
            f'sasl.jaas.config={login} username="alice" password="wonderland";\n'
        )
        consume = tools.tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer", "--topic", "again",
            "--max-messages", "6", "--consumer.config", str(file), "--timeout-ms", "20000",
        )  # fmt: skip
        waiting = threading.Thread(target=lambda: java.append(tools.run(consume)))
        waiting.start()
    before = metric("strandline_kafka_logins_total")
    errors: list[Any] = []
    producer = Producer({**settings, "error_cb": errors.append})
    for number in range(6):
        producer.produce("again", str(number).encode(), on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(SECONDS) == 0
        time.sleep(1)
    assert errors == [None] * 6
    assert metric("strandline_kafka_logins_total") - before >= 3
    if waiting is not None:
        waiting.join(SECONDS)
        assert (java[0].code, java[0].lines) == (0, list("012345")), java
        assert "uthentication" not in java[0].err
    # A client has a tenth of two seconds for it, and on a busy machine one may be late once.
    assert metric(expired) <= 1
    node.add("gone", "soon")
    reader = Consumer({**librdkafka(node, "short", "SCRAM-SHA-256", "gone", "soon"), "group.id": "g"})
    reader.list_topics(timeout=SECONDS)
    deletion = UserScramCredentialDeletion("gone", ScramMechanism.SCRAM_SHA_256)
    for future in admin.alter_user_scram_credentials([deletion]).values():
        future.result(SECONDS)
    node.lines.clear()
    node.says("a login failed: user 'gone' is unknown")
    reader.close()


def test_a_view_s_process_logs_in_by_itself_and_its_password_is_nowhere(node: Node, tmp_path: Path) -> None:
    admin = node.admin()
    made: Any = admin.create_topics([NewTopic("ships", 1), NewTopic("secrets", 1)])
    for future in made.values():
        future.result(SECONDS)
    writer = Producer({"bootstrap.servers": node.address("internal"), "log_level": 0})
    writer.produce("ships", b'{"harbour": "north"}')
    assert writer.flush(SECONDS) == 0
    program = tmp_path / "harbours.sql"
    program.write_text(
        "CREATE TABLE ships (harbour STRING);\n"
        "CREATE VIEW harbours AS SELECT harbour, count(*) AS n FROM ships GROUP BY harbour;\n"
    )
    http = f"127.0.0.1:{node.told['admin_port']}"
    applied = subprocess.run(
        [sys.executable, "-m", "strandline", "view", "apply", str(program), "--wait", "40", "--admin", http],
        capture_output=True, text=True, timeout=2 * SECONDS, check=False,
    )  # fmt: skip
    assert applied.returncode == 0, (applied.stderr, node.lines)
    node.says("Internal:views")
    reader = Consumer({"bootstrap.servers": node.address("internal"), "group.id": "r", "log_level": 0})
    reader.assign([TopicPartition("harbours", 0, 0)])
    [record] = reader.consume(1, SECONDS)
    assert (record.key(), record.value()) == (b'["north"]', b'{"harbour":"north","n":1}')
    reader.close()
    secret = view_login.password(SECRET)
    with urllib.request.urlopen(f"http://{http}/api/views", timeout=SECONDS) as answer:
        told = answer.read().decode()
    [running] = json.loads(told)["running"]
    process = Path(f"/proc/{running['process']}")
    for file in ("cmdline", "environ"):
        for text in (secret, SECRET):
            assert text.encode() not in (process / file).read_bytes()
    assert not any(text in told or any(text in line for line in node.lines) for text in (secret, SECRET))
    # What knows the password may do what the programs say, and nothing else.
    settings = librdkafka(node, "public", "SCRAM-SHA-256", "Internal:views", secret)
    client = AdminClient(settings)
    assert {name for name in client.list_topics(timeout=SECONDS).topics if name[0] != "_"} >= {"ships"}
    assert "secrets" not in client.list_topics(timeout=SECONDS).topics
    refused = Producer({**settings, "message.timeout.ms": 20_000})
    errors: list[Any] = []
    refused.produce("ships", b"{}", on_delivery=lambda error, _: errors.append(error))
    refused.flush(SECONDS)
    assert [error.name() for error in errors] == ["TOPIC_AUTHORIZATION_FAILED"]
    assert not by_librdkafka(node, "public", "SCRAM-SHA-256", "Internal:views", "wonderland")
    with pytest.raises(KafkaException, match="UNACCEPTABLE_CREDENTIAL"):
        node.add("Internal:views", "mine")
