"""Bearer tokens: each thing that has to hold for one, and keys that come and go."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm

from strandline.node.oauth import key_set as key_set_module
from strandline.node.oauth.bearer_tokens import MAX_TOKEN_BYTES
from strandline.node.oauth.errors import BadToken, KeySetError
from strandline.node.oauth.key_set import AGAIN_SECONDS, MAX_BYTES, REFRESH_SECONDS, KeySet
from tests.oauth.issuer import (
    AUDIENCE,
    ISSUER,
    claims,
    key_set,
    private_key,
    public,
    publishing,
    token,
    tokens,
)
from tests.served import QuietHandler, served


@pytest.mark.parametrize(("kid", "algorithm"), [("rsa-1", "RS256"), ("rsa-1", "PS512"), ("ec-1", "ES256")])
def test_a_right_token_proves_its_user_until_it_ends(tmp_path: Path, kid: str, algorithm: str) -> None:
    ends = int(time.time()) + 77
    proved = tokens(tmp_path).check(token(kid, algorithm, exp=ends, aud=["other", AUDIENCE]))
    assert (proved.user, proved.ends) == ("alice", ends)
    assert tokens(tmp_path, claim="client_id").check(token(client_id="shop")).user == "shop"


def raw(head: dict[str, Any], body: dict[str, Any], signature: bytes = b"") -> str:
    parts = [json.dumps(head).encode(), json.dumps(body).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


def tampered() -> str:
    head, _, signature = token().split(".")
    body = base64.urlsafe_b64encode(json.dumps(claims(sub="admin")).encode()).decode().rstrip("=")
    return f"{head}.{body}.{signature}"


def signed_with_the_public_key() -> str:
    """The oldest trick with tokens: HMAC with the public key, which all may know, for its secret."""
    pem = private_key("rsa-1").public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    head, body, _ = raw({"alg": "HS256", "kid": "rsa-1"}, claims()).split(".")
    mac = hmac.new(pem, f"{head}.{body}".encode(), hashlib.sha256).digest()
    return f"{head}.{body}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


NOW = int(time.time())


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: token(exp=NOW - 60), "ExpiredSignatureError"),
        (lambda: token(exp=None), "exp"),
        (lambda: token(exp="soon"), "exp"),
        (lambda: token(nbf=NOW + 1_000_000), "ImmatureSignatureError"),
        (lambda: token(iss="https://id.example.com/"), "InvalidIssuerError"),
        (lambda: token(iss=None), "iss"),
        (lambda: token(aud="other"), "InvalidAudienceError"),
        (lambda: token(aud=None), "aud"),
        (lambda: token(sub=None), "sub"),
        (lambda: token(sub=""), "is no name of 1 to 256"),
        (lambda: token(sub="x" * 257), "is no name of 1 to 256"),
        (lambda: token(sub="alice\nadmin"), "printable"),
        (lambda: token(sub="\ud800"), "printable"),
        (lambda: token(sub=7), "not right|is no name"),
        (lambda: token(exp=1e400), "not right"),
        (lambda: token("rsa-2"), "no key for RS256 has the id 'rsa-2'"),
        (lambda: token("rsa-2", headers={"kid": "rsa-1"}), "InvalidSignatureError"),
        (lambda: token("ec-2", headers={"kid": "ec-1"}), "InvalidSignatureError"),
        (lambda: token("ec-1", headers={"kid": "rsa-1"}), "no key for ES256 has the id 'rsa-1'"),
        (tampered, "InvalidSignatureError"),
        (signed_with_the_public_key, "signed by 'HS256', which is not taken"),
        (lambda: raw({"alg": "none"}, claims()), "signed by 'none', which is not taken"),
        (lambda: raw({"alg": "None", "kid": "rsa-1"}, claims()), "signed by 'None', which is not taken"),
        (lambda: raw({"alg": ["RS256"]}, claims()), "not"),
        (lambda: raw({"alg": "RS256", "kid": "rsa-1"}, claims()), "InvalidSignatureError"),
        (lambda: raw({"kid": "rsa-1"}, claims()), "signed by 'None'"),
        (lambda: "a.b.c", "DecodeError"),
        (lambda: "", "DecodeError"),
        (lambda: "x" * (MAX_TOKEN_BYTES + 1), "are the most"),
    ],
)
def test_a_token_that_is_wrong_in_one_thing_proves_nothing(tmp_path: Path, made: Any, why: str) -> None:
    with pytest.raises(BadToken, match=why):
        tokens(tmp_path).check(made())


def test_clocks_may_differ_by_half_a_minute(tmp_path: Path) -> None:
    assert tokens(tmp_path).check(token(exp=int(time.time()) - 20, nbf=int(time.time()) + 20))


def test_a_token_without_a_key_s_id_is_held_against_the_only_one_that_fits(tmp_path: Path) -> None:
    assert tokens(tmp_path).check(token(headers={})).user == "alice"
    with pytest.raises(BadToken, match="no key for RS256 has the id 'None'"):
        tokens(tmp_path, "rsa-1", "rsa-2").check(token(headers={}))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    head=st.dictionaries(
        st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jwk", "x5c"]),
        st.none()
        | st.booleans()
        | st.integers()
        | st.sampled_from(["RS256", "ES256", "rsa-1"])
        | st.lists(st.text()),
    ),
    body=st.dictionaries(
        st.sampled_from(["exp", "sub", "aud", "iss", "nbf", "iat"]), st.floats() | st.text()
    ),
    signature=st.binary(max_size=300),
)
def test_nothing_made_up_is_taken(tmp_path: Path, head: Any, body: Any, signature: bytes) -> None:
    made = tokens(tmp_path)
    with pytest.raises(BadToken):
        made.check(raw(head, body, signature))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_keys_are_rotated_without_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    made = tokens(tmp_path, "rsa-1", clock=clock)
    path = tmp_path / "keys.json"
    path.write_bytes(key_set("rsa-1", "rsa-2"))
    with pytest.raises(BadToken, match="no key"):
        made.check(token("rsa-2"))  # a look just now: strangers may name any key
    clock.now += AGAIN_SECONDS
    assert made.check(token("rsa-2")).user == "alice"
    path.write_bytes(key_set("rsa-2"))
    assert made.check(token("rsa-1")).user == "alice", "until it is looked for again"
    clock.now += REFRESH_SECONDS
    with pytest.raises(BadToken, match="no key"):
        made.check(token("rsa-1"))
    path.write_text("{}")
    clock.now += REFRESH_SECONDS
    with caplog.at_level(logging.WARNING):
        assert made.check(token("rsa-2")).user == "alice", "what is known is used while the file is bad"
    assert made.key_reads == {"ok": 3, "failed": 1}
    assert "is no JSON Web Key Set (KeyError): put a JSON Web Key Set" in caplog.text


def test_keys_come_from_a_server_and_from_one_that_is_away_at_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers = [(503, b""), (200, key_set("rsa-1"))]
    clock = Clock()
    with publishing(lambda: answers[0]) as url:
        keys = KeySet(url, clock)
        keys.open()
        assert "HTTP Error 503" in caplog.text or "Service Unavailable" in caplog.text
        assert "see that 127.0.0.1 answers; logins with tokens fail until then" in caplog.text
        answers.pop(0)
        assert keys.find("rsa-1", "RS256") is None
        clock.now += AGAIN_SECONDS
        assert keys.find("rsa-1", "RS256") is not None
        clock.now += AGAIN_SECONDS
        with publishing(lambda: (200, key_set("rsa-2"))) as elsewhere:
            answers[0] = (302, elsewhere.encode())
            assert keys.find("rsa-2", "RS256") is None, "no other place is asked"
        assert keys.find("rsa-1", "RS256") is not None


def answering(write: Callable[[QuietHandler], object]) -> type[QuietHandler]:
    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.close_connection = True
            write(self)

    return Handler


@pytest.mark.parametrize(
    "said", [b"\1\2\3\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200 OK\r\nA: " + b"x" * 70_000, b""]
)
def test_a_server_that_does_not_speak_http_leaves_the_known_keys(
    said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    right = b"HTTP/1.0 200 OK\r\n\r\n" + key_set("rsa-1")
    says = [right]
    with served(answering(lambda handler: handler.wfile.write(says[0]))) as address:
        keys = KeySet(f"http://{address}/keys", clock)
        keys.open()
        clock.now += REFRESH_SECONDS
        says[0] = said
        assert keys.find("rsa-1", "RS256") is not None
        assert "cannot be read" in caplog.text
        assert keys.reads == {"ok": 1, "failed": 1}
        caplog.clear()
        KeySet(f"http://{address}/keys", clock).open()
        assert "logins with tokens fail until then" in caplog.text, "and keeps no node from starting"


def test_a_server_that_answers_a_byte_at_a_time_is_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(key_set_module, "READ_SECONDS", 0.3)

    def drip(handler: QuietHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nA: ")
        ends = time.monotonic() + 60
        while time.monotonic() < ends:
            try:
                handler.wfile.write(b"x")
            except OSError:
                return
            time.sleep(0.02)

    with served(answering(drip)) as address:
        began = time.monotonic()
        KeySet(f"http://{address}/keys").open()
        assert time.monotonic() - began < 30
    assert "cannot be read (it took more than 0.3 s): see that 127.0.0.1 answers" in caplog.text


def test_a_read_that_lasts_keeps_one_thread_and_no_more() -> None:
    clock, asked, go = Clock(), threading.Event(), threading.Event()

    def answer() -> tuple[int, bytes]:
        asked.set()
        assert go.wait(60)
        return 200, key_set("rsa-1")

    with publishing(answer) as url:
        keys = KeySet(url, clock)
        first = threading.Thread(target=keys.find, args=("rsa-1", "RS256"))
        first.start()
        assert asked.wait(60)
        clock.now += AGAIN_SECONDS
        began = time.monotonic()
        assert keys.find("rsa-1", "RS256") is None
        assert time.monotonic() - began < 30
        go.set()
        first.join()
        assert keys.find("rsa-1", "RS256") is not None
    assert keys.reads == {"ok": 1, "failed": 0}


def test_no_proxy_answers_for_a_server_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TLS a proxy could put its own keys in their place."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with (
        publishing(lambda: (200, key_set("rsa-2"))) as proxy,
        publishing(lambda: (200, key_set("rsa-1"))) as at,
    ):
        monkeypatch.setenv("http_proxy", proxy)
        keys = KeySet(at)
        keys.open()
    assert keys.find("rsa-1", "RS256") is not None
    assert keys.find("rsa-2", "RS256") is None


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is no JSON Web Key Set"),
        (b"[]", "is no JSON Web Key Set"),
        (b'{"keys": 5}', "is no JSON Web Key Set"),
        (b'{"keys": []}', "has no public key that signs tokens"),
        (json.dumps({"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "1"}]}).encode(), "has no public key"),
        (json.dumps({"keys": [public("rsa-1", use="enc")]}).encode(), "has no public key"),
        (json.dumps({"keys": [public("rsa-1", alg="HS256")]}).encode(), "has no public key"),
        (json.dumps({"keys": [{**public("rsa-1"), "n": "!"}]}).encode(), "has no public key"),
        (
            json.dumps({"keys": [ECAlgorithm.to_jwk(private_key("ec-1"), as_dict=True)]}).encode(),
            "has no publ",
        ),
        (b" " * (MAX_BYTES + 1), "is longer than"),
    ],
)
def test_a_file_without_keys_is_one_line(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(data)
    with pytest.raises(KeySetError, match=why) as caught:
        KeySet(str(path)).open()
    assert str(path) in str(caught.value)
    with pytest.raises(KeySetError, match="No such file or directory: write the path of"):
        KeySet(str(tmp_path / "none")).open()


def test_a_key_is_for_the_algorithm_that_it_names(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [public("rsa-1", alg="RS256"), {"kty": "odd"}]}))
    keys = KeySet(str(path))
    keys.open()
    assert keys.find("rsa-1", "RS256") is not None
    assert keys.find("rsa-1", "PS256") is None
    assert keys.find("rsa-1", "ES256") is None


def test_the_issuer_is_the_one_that_is_configured() -> None:
    assert jwt.decode(token(), options={"verify_signature": False})["iss"] == ISSUER
