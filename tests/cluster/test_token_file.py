"""Tokens of commands: where they come from, and what is told where none can be had."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from strandline.cluster.client_settings import load
from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.kafka_client import client_config
from strandline.cluster.token_file import MAX_BYTES, TOKEN_URL, TOKEN_VARIABLE, token, token_and_end
from tests.oauth.issuer import token as issued

JAVA = "org.apache.kafka.common.security.oauthbearer"


def written(folder: Path, bearer: str) -> Path:
    path = folder / "token"
    path.touch(0o600)
    path.write_text(bearer)
    return path


def settings(folder: Path, *lines: str) -> dict[str, str]:
    path = folder / "client.properties"
    path.write_text("\n".join(("security.protocol=SASL_SSL", "sasl.mechanism=OAUTHBEARER", *lines)))
    path.chmod(0o600)
    return load(path)


def test_a_file_of_java_s_client_is_taken_as_it_is(tmp_path: Path) -> None:
    file, ends = written(tmp_path, ""), int(time.time()) + 77
    found = settings(
        tmp_path,
        f"{TOKEN_URL}={file.as_uri()}",
        f"sasl.login.callback.handler.class={JAVA}.OAuthBearerLoginCallbackHandler",
        f"sasl.jaas.config={JAVA}.OAuthBearerLoginModule required;",
    )
    bearer = issued(exp=ends)
    file.write_text(f"{bearer}\n")
    assert token_and_end(found) == (bearer, ends)
    file.write_text("of another kind")
    assert token(found) == "of another kind", "what it is, the node judges"
    assert token_and_end(found)[1] > time.time()


def test_a_variable_may_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandFailed, match=f"OAUTHBEARER needs a token.*{TOKEN_VARIABLE}"):
        settings(tmp_path)
    bearer = issued()
    monkeypatch.setenv(TOKEN_VARIABLE, bearer)
    assert token(settings(tmp_path)) == bearer
    monkeypatch.setenv(TOKEN_VARIABLE, "")
    with pytest.raises(CommandFailed, match=f"the variable {TOKEN_VARIABLE} has no token"):
        token(settings(tmp_path))


@pytest.mark.parametrize("url", ["https://id.example.org/token", "file://host/token", "file:token", "/token"])
def test_other_places_are_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(CommandFailed, match="is not the URL of a file") as failed:
        settings(tmp_path, f"{TOKEN_URL}={url}")
    assert failed.value.status == MISUSED


def test_what_is_no_token_is_told_at_once_and_not_shown(tmp_path: Path) -> None:
    file = written(tmp_path, "")
    found = settings(tmp_path, f"{TOKEN_URL}={file.as_uri()}")
    for bad in ("", " \n", "a b\nc", "h\u00fcsh", "x" * (MAX_BYTES + 1)):
        file.write_text(bad)
        with pytest.raises(CommandFailed, match="has no token") as failed:
            token(found)
        assert "h\u00fcsh" not in str(failed.value)
    file.write_text(issued(exp=int(time.time()) - 60))
    with pytest.raises(CommandFailed, match=r"has ended, at .* UTC"):
        token(found)
    file.write_text(issued(exp=int(time.time()) - 20))
    assert token(found), "clocks may differ by half a minute"
    file.chmod(0o640)
    with pytest.raises(CommandFailed, match=r"can be read by others than its owner.*chmod 600"):
        token(found)
    file.unlink()
    with pytest.raises(CommandFailed, match="No such file"):
        token(found)


def test_a_client_asks_for_the_token_of_each_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from strandline.cluster.client_settings import CURRENT

    first, second = issued(), issued(sub="bob")
    file = written(tmp_path, first)
    had = CURRENT.set(settings(tmp_path, f"{TOKEN_URL}={file.as_uri()}"))
    try:
        config = client_config("127.0.0.1:1")
        assert config["oauth_cb"]("")[0] == first
        file.write_text(second)
        assert config["oauth_cb"]("")[0] == second
        file.write_text("")
        with pytest.raises(CommandFailed):
            client_config("127.0.0.1:1")
    finally:
        CURRENT.reset(had)
