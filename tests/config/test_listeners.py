"""[listeners.<name>]: what they are when left out, what is refused, and how variables name their keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.node.broker.settings import registration_of, server_config
from strandline.node.config.listeners import LISTENER_READERS
from strandline.node.kafka.handlers.setting_answers import broker_settings
from strandline.node.kafka.wire.hosts import host_of
from strandline.statemachine.controller.controller_state import DEFAULT_LISTENER
from tests.config.config_file import EMPTY, GOOD, loaded, problem

TLS = """
protocol = "SSL"
certificate = "/etc/strandline/node.pem"
key = "/etc/strandline/node.key"
"""
TWO = f"""
{GOOD}
[listeners.internal]
port = 9092
[listeners.public]
host = "10.0.0.1"
port = 9093
advertised_host = "kafka.example.org"
ca = "/etc/strandline/ca.pem"
client_certificate = "required"
principal_rules = ["RULE:^CN=([^,]+).*$/$1/L", "DEFAULT"]
{TLS}
"""


SASL = """
[listeners.a]
protocol = "SASL_PLAINTEXT"
"""


def test_clients_log_in_where_the_protocol_says_so(tmp_path: Path) -> None:
    (one,) = loaded(tmp_path, GOOD + SASL).listeners
    assert one.address.mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-512")
    assert (one.address.tls, one.address.max_reauth_seconds) == (None, 0)
    (one,) = loaded(tmp_path, f'{GOOD}{SASL}max_reauth_seconds = "90m"').listeners
    assert one.address.max_reauth_seconds == 5400
    meant = f'{GOOD}{SASL}plain_without_tls = true\nmechanisms = ["PLAIN"]'
    (one,) = loaded(tmp_path, meant).listeners
    assert one.address.mechanisms == ("PLAIN",)
    open_to_all = f'[listeners.a]\nhost = "10.0.0.1"{TLS}mechanisms = "PLAIN,SCRAM-SHA-512"\n'
    (one,) = loaded(tmp_path, GOOD + open_to_all.replace('"SSL"', '"SASL_SSL"')).listeners
    assert one.address.mechanisms == ("PLAIN", "SCRAM-SHA-512")
    assert one.address.tls is not None


def test_numbers_of_connections_are_of_hosts_however_these_are_spelled(tmp_path: Path) -> None:
    def overrides(text: str) -> str:
        return f"{GOOD}[quotas]\nmax_connections_per_ip_overrides = {text}\n"

    both = '["10.0.0.7:100", " [2001:DB8:0::1]:5 "]'
    for text in (both, '"10.0.0.7:100,2001:db8::1:5"'):
        config = loaded(tmp_path, overrides(text))
        found = server_config(config).max_connections_per_ip_overrides
        assert (
            found
            == {"10.0.0.7": 100, "2001:db8::/64": 5}
            == {host_of("10.0.0.7"): 100, host_of("2001:db8::2"): 5}
        )
    assert loaded(tmp_path, overrides('"::ffff:10.0.0.7:3"')).quotas.max_connections_per_ip_overrides == {
        "10.0.0.7": 3
    }
    for text, words in {
        '["broker-1:5"]': "is no IP address with the number of its connections: write like 10.0.0.7:100",
        '["10.0.0.7"]': "is no IP address with",
        '["10.0.0.7:0"]': "is no IP address with",
        '["10.0.0.7:-1"]': "is no IP address with",
        '["10.0.0.7:2147483648"]': "is no IP address with",
        "7": 'is not a list like ["10.0.0.7:100"]',
        "[7]": 'is not a list like ["10.0.0.7:100"]',
        '["2001:db8::1:5", "2001:db8::2:6"]': "is of 2001:db8::/64, which has a number already",
    }.items():
        assert words in problem(tmp_path, overrides(text)), text


def test_bounds_of_connections_are_read_and_reach_the_server(tmp_path: Path) -> None:
    given = "[quotas]\nmax_connections = 7\nmax_connections_per_ip = 3\nmax_connection_creation_rate = 5\n"
    own = "[listeners.a]\nmax_connections = 2\nmax_connection_creation_rate = 4\n"
    config = loaded(tmp_path, GOOD + given + own)
    server = server_config(config)
    assert (server.max_connections, server.max_connections_per_ip) == (7, 3)
    assert server.max_connection_creation_rate == 5
    (one,) = config.listeners
    assert (one.address.max_connections, one.address.max_connection_creation_rate) == (2, 4)
    told = {one.name: one.value for one in broker_settings(config, EMPTY)}
    assert (told["max.connections"], told["max.connections.per.ip"]) == ("7", "3")
    assert told["max.connection.creation.rate"] == "5"
    usual = {one.name: one.value for one in broker_settings(loaded(tmp_path), EMPTY)}
    assert (usual["max.connections.per.ip"], usual["max.connection.creation.rate"]) == ("2147483647",) * 2
    assert "0 to" in problem(tmp_path, GOOD + "[quotas]\nmax_connections_per_ip = -1\n")
    assert "1 to" in problem(tmp_path, GOOD + "[quotas]\nmax_connections = 0\n")


BEARER = f'{SASL}plain_without_tls = true\nmechanisms = ["OAUTHBEARER"]\n'
OAUTH = """oauth_issuer = "https://id.example.org/"
oauth_audience = "strandline"
"""


def test_tokens_are_of_one_issuer_with_keys_at_a_place(tmp_path: Path) -> None:
    listener = f'{GOOD}{SASL}plain_without_tls = true\nmechanisms = ["OAUTHBEARER"]\n{OAUTH}'
    for place in ("/etc/keys.json", "https://id.example.org/keys", "http://127.0.0.1:8080/keys"):
        (one,) = loaded(tmp_path, f'{listener}oauth_keys = "{place}"').listeners
        assert one.address.tokens is not None
        assert (one.oauth_keys, one.oauth_principal_claim) == (place, "sub")
    (one,) = loaded(tmp_path, GOOD + SASL).listeners
    assert one.address.tokens is None


def test_without_listeners_the_one_of_kafka_is_there(tmp_path: Path) -> None:
    config = loaded(tmp_path, STRANDLINE_KAFKA_PORT="7")
    (one,) = config.listeners
    assert (one.name, one.host, one.port, one.protocol) == (DEFAULT_LISTENER, "127.0.0.1", 7, "PLAINTEXT")
    assert one.address.tls is None
    assert one.address.section == "kafka"
    ports = {DEFAULT_LISTENER: 7}
    command = registration_of(config, boot_id=1, folder=1, kafka_ports=ports, admin_port=1, now_ms=0)
    assert (command.kafka_host, command.kafka_port, command.listeners) == ("127.0.0.1", 7, ())


def test_each_listener_has_its_address_and_its_tls(tmp_path: Path) -> None:
    config = loaded(tmp_path, TWO)
    internal, public = config.listeners
    assert (internal.name, internal.port, internal.tls) == ("internal", 9092, None)
    assert (public.host, public.port, public.advertised_host) == ("10.0.0.1", 9093, "kafka.example.org")
    tls = public.address.tls
    assert tls is not None
    assert tls.files == ("/etc/strandline/node.pem", "/etc/strandline/node.key", "/etc/strandline/ca.pem")
    assert (tls.client_certificate, tls.tls_version) == ("required", "1.2")
    certificate = {"subject": ((("organizationName", "x"),), (("commonName", "Alice"),))}
    assert public.address.rules.principal(certificate) == "User:alice"
    ports = {"internal": 9092, "public": 9093}
    command = registration_of(config, boot_id=1, folder=1, kafka_ports=ports, admin_port=1, now_ms=0)
    assert (command.kafka_host, command.kafka_port) == ("127.0.0.1", 9092)
    assert command.listeners == [("internal", "127.0.0.1", 9092), ("public", "kafka.example.org", 9093)]


def test_a_broker_s_configs_tell_its_listeners(tmp_path: Path) -> None:
    told = {setting.name: setting.value for setting in broker_settings(loaded(tmp_path, TWO), EMPTY)}
    assert told["listeners"] == "INTERNAL://127.0.0.1:9092,PUBLIC://10.0.0.1:9093"
    assert told["advertised.listeners"] == "INTERNAL://127.0.0.1:9092,PUBLIC://kafka.example.org:9093"
    assert told["listener.security.protocol.map"] == "INTERNAL:PLAINTEXT,PUBLIC:SSL"
    alone = {setting.name: setting.value for setting in broker_settings(loaded(tmp_path), EMPTY)}
    assert alone["listeners"] == "PLAINTEXT://127.0.0.1:9092"
    assert "listener.security.protocol.map" not in alone


def test_variables_and_flags_name_a_listener(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        TWO,
        ("listeners.internal.port=0",),
        STRANDLINE_LISTENERS_PUBLIC_TLS_VERSION="1.3",
        STRANDLINE_LISTENERS_PUBLIC_ADVERTISED_PORT="443",
    )
    internal, public = config.listeners
    assert internal.port == 0
    assert (public.tls_version, public.advertised_port) == ("1.3", 443)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[listeners.public]\nprotcol = 1",
            "protcol: there is no such key: write listeners.<",
        ),
        ("[listeners.Public]\nport = 1", "listeners.Public.port: there is no such key"),
        ("[listeners.a_b]\nport = 1", "the name in lower case and digits"),
        (
            '[listeners.public]\nprotocol = "TLS"',
            "public.protocol: 'TLS' is none of PLAINTEXT, SSL",
        ),
        (
            '[listeners.public]\nprotocol = "ssl"',
            "public.certificate: it is not set, and SSL needs it",
        ),
        ('[listeners.public]\ncertificate = "x.pem"', "certificate: 'x.pem' is relative"),
        ('[listeners.public]\ntls_version = "1.1"', "'1.1' is none of 1.2, 1.3"),
        (
            '[listeners.public]\nca = "/x"',
            "public.ca: PLAINTEXT has no TLS: set protocol",
        ),
        (f'[listeners.a]{TLS}nodes_ca = "/x"', "a.nodes_ca: it is for logins by SASL_SSL: set protocol, or"),
        (f'[listeners.a]{TLS}client_certificate = "wanted"', "listeners.a.ca: it is not set: write the path"),
        (f'[listeners.a]{TLS}ca = "/x"', "no certificate of a client is looked at: set client_certificate"),
        (f'[listeners.a]{TLS}principal_rules = ["x"]', "listeners.a.principal_rules: 'x' is not a rule"),
        (f"[listeners.a]{TLS}principal_rules = 3", "is not a list of rules"),
        (
            f'[listeners.a]{TLS}host = "10.0.0.1"',
            "a.host: 10.0.0.1 can be reached from other",
        ),
        ('[listeners.a]\nhost = "10.0.0.1"', "clients need not prove their names: set protocol"),
        ("[listeners.a]\nport = 5\n[listeners.b]\nport = 5", "listeners.b.port: a has 127.0.0.1:5 already"),
        (
            "[listeners.a]\nport = 5\n[kafka]\nport = 5",
            "kafka.port: there are [listeners.<name>]",
        ),
        (
            f'[listeners.a]{TLS}host = "::"\nca = "/ca"\nclient_certificate = "required"',
            "listeners.a.host: clients would be told to connect to ::",
        ),
        ('[listeners.a]\nmechanisms = ["PLAIN"]', "mechanisms: no client logs in by PLAINTEXT: set protocol"),
        ('[listeners.a]\nmax_reauth_seconds = "1h"', "max_reauth_seconds: no client logs in by PLAINTEXT"),
        (f'{SASL}max_reauth_seconds = "1900ms"', "'1900ms' is less than 2 s: there is a second at least"),
        (f"{SASL}max_reauth_seconds = 0.0005", "or 0 for logins that do not end"),
        (f'{SASL}mechanisms = ["PLAIN"]', "by PLAIN and without TLS every password crosses the network"),
        (f'{SASL}mechanisms = ["GSSAPI"]', "is not a list of some of SCRAM-SHA-256, SCRAM-SHA-512, PLAIN"),
        (f"{SASL}mechanisms = []", "is not a list of some of"),
        (f'{SASL}mechanisms = ["OAUTHBEARER"]', "by OAUTHBEARER and without TLS every token crosses the"),
        (
            f"{BEARER}{OAUTH}",
            "oauth_keys: it is not set, and logins by OAUTHBEARER need it: write the path or",
        ),
        (f'{BEARER}oauth_keys = "/k"\noauth_issuer = "i"', "oauth_audience: it is not set, and logins by"),
        (f'{BEARER}{OAUTH}oauth_keys = "http://id.example.org/k"', "is no URL whose answer can be trusted"),
        (f'{BEARER}{OAUTH}oauth_keys = "https://me:pw@id.example.org/k"', "its user or password would be in"),
        (f'{BEARER}{OAUTH}oauth_keys = "keys.json"', "'keys.json' is relative"),
        (f'{SASL}oauth_keys = "/k"', "oauth_keys: no client logs in by OAUTHBEARER: add it to mechanisms"),
        ('[listeners.a]\noauth_issuer = "i"', "oauth_issuer: no client logs in by PLAINTEXT: set protocol"),
        (f'{SASL}host = "10.0.0.1"', "a.host: 10.0.0.1 can be reached from other"),
        ("".join(f"[listeners.l{n}]\nport = 0\n" for n in range(17)), "17 listeners are more than 16"),
    ],
)
def test_each_mistake_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    assert words in problem(tmp_path, f"{GOOD}\n{text}\n")


def test_what_is_meant_is_let_be(tmp_path: Path) -> None:
    open_to_all = f'insecure = true\n{GOOD}\n[listeners.a]\nhost = "10.0.0.1"\n'
    assert loaded(tmp_path, open_to_all).listeners[0].host == "10.0.0.1"


def test_the_page_has_every_key_of_a_listener() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    rows = page.partition("| key of `[listeners.NAME]` |")[2].partition("\n\n")[0]
    assert {key for key in LISTENER_READERS if f"`{key}`" not in rows} == set()
