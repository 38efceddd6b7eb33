"""Files with settings of clients: what of Kafka's is taken, what is refused, and that secrets are noticed."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from strandline.cluster.client_settings import CURRENT, MAX_BYTES, load
from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.kafka_client import TopicAdmin, client_config
from strandline.cluster.target import target

JAAS = "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "


def written(folder: Path, text: str) -> Path:
    path = folder / "client.properties"
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_a_file_of_kafka_s_is_taken_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(
        tmp_path,
        "# a comment\n! another\n\n  security.protocol = SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        + JAAS
        + '\\\n  username="al\\"ice" \\\n  password="a=b, c\\\\";\n'
        + "ssl.truststore.type=PEM\nssl.truststore.location=/ca.pem\n"
        + "ssl.endpoint.identification.algorithm=\n",
    )
    assert load(path) == {
        "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": 'al"ice',
        "sasl.password": "a=b, c\\", "ssl.ca.location": "/ca.pem",
        "ssl.endpoint.identification.algorithm": "none",
    }  # fmt: skip
    assert capsys.readouterr().err == ""


def test_a_secret_that_others_may_read_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "security.protocol=SASL_SSL\nsasl.username=a\nsasl.password=hush\n")
    path.chmod(0o644)
    load(path)
    told = capsys.readouterr().err
    assert f"chmod 600 {path}" in told
    assert "hush" not in told


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("security.protocol\n", "line 1 has no ="),
        ("securityprotocol=SSL\n", "securityprotocol is not known"),
        ("security.protocol=TLS\n", "security.protocol=TLS"),
        ("security.protocol=SASL_SSL\n", "SASL_SSL needs a user"),
        (f"{JAAS}username='a';\n", "sasl.jaas.config has no username"),
        ("ssl.truststore.type=JKS\n", "ssl.truststore.type=JKS cannot be read"),
        ("x" * (MAX_BYTES + 1), "it has more than"),
    ],
)
def test_what_cannot_be_is_named(tmp_path: Path, text: str, cause: str) -> None:
    with pytest.raises(CommandFailed) as failed:
        load(written(tmp_path, text))
    assert cause in str(failed.value)
    assert str(tmp_path) in str(failed.value)


def test_a_refusal_has_no_password_in_it(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed) as failed:
        load(written(tmp_path, "sasl.passwort=hush\nsasl.password=hush\n"))
    assert "hush" not in str(failed.value)


@pytest.mark.parametrize("data", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, data: bytes | None) -> None:
    path = tmp_path / "none"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(CommandFailed, match="none"):
        load(path)


def test_clients_get_it_and_the_address_stands_in_for_bootstrap() -> None:
    token = CURRENT.set({"security.protocol": "SSL", "bootstrap.servers": "there:9093"})
    try:
        assert target().bootstrap == "there:9093"
        assert target(bootstrap="here:9092").bootstrap == "here:9092"
        config = client_config("here:9092")
        assert (config["security.protocol"], config["bootstrap.servers"]) == ("SSL", "here:9092")
    finally:
        CURRENT.reset(token)
    assert "security.protocol" not in client_config("here:9092")


def test_what_only_the_client_can_refuse_is_said_in_one_line_without_secrets(tmp_path: Path) -> None:
    text = (
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=TELEPATHY\nsasl.username=a\nsasl.password=hunter2\n"
    )
    token = CURRENT.set(load(written(tmp_path, text)))
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            where = target(bootstrap=f"127.0.0.1:{server.getsockname()[1]}")
            with pytest.raises(CommandFailed, match="TELEPATHY") as failed:
                TopicAdmin(where)
    finally:
        CURRENT.reset(token)
    assert failed.value.status == MISUSED
    assert "hunter2" not in str(failed.value)
