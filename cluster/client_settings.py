"""Settings of clients in a file as Kafka's own tools take it: how a command logs in, and what it trusts.

Secrets stand in the file and never on a command line, where every process of the machine could read them. A
token stands in a file of its own, or in a variable: it is another one every few minutes.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Final

from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.token_file import OAUTHBEARER, TOKEN_URL, TOKEN_VARIABLE, token_path

MAX_BYTES: Final = 64 * 1024
BOOTSTRAP: Final = "bootstrap.servers"
_SAME: Final = frozenset((
    "security.protocol", "sasl.mechanism", "sasl.username", "sasl.password", "ssl.ca.location",
    "ssl.certificate.location", "ssl.key.location", "ssl.key.password", BOOTSTRAP, TOKEN_URL,
    "ssl.endpoint.identification.algorithm",
))  # fmt: skip
"""Names that librdkafka has too, or has alone."""
_JAVA: Final = {
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.keystore.location": "ssl.keystore.location",
    "ssl.keystore.password": "ssl.keystore.password",
}
_TYPES: Final = {"ssl.truststore.type": "PEM", "ssl.keystore.type": "PKCS12"}
"""Forms of files that librdkafka reads; Java's own, JKS, it does not."""
_HANDLER: Final = "sasl.login.callback.handler.class"
"""Java's client needs it beside TOKEN_URL, and a command does not."""
_JAAS: Final = "sasl.jaas.config"
_OPTION: Final = re.compile(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"')
_SECRET: Final = frozenset(("sasl.password", "ssl.key.password", "ssl.keystore.password"))
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

CURRENT: Final[ContextVar[Mapping[str, str]]] = ContextVar("CURRENT", default={})  # noqa: B039
"""The settings of the command that runs, by librdkafka's names."""


_OF_FOLDER: Final[ContextVar[bool]] = ContextVar("_OF_FOLDER", default=False)


def given(settings: Mapping[str, str]) -> None:
    """Take the settings of the file that the user named, none where there is none."""
    CURRENT.set(settings)
    _OF_FOLDER.set(False)


def of_folder(path: Path | None) -> None:
    """Take the settings of a local cluster, none for one without logins, where the user named no file."""
    if CURRENT.get() and not _OF_FOLDER.get():
        return
    settings = {} if path is None else load(path)
    settings.pop(BOOTSTRAP, None)
    CURRENT.set(settings)
    _OF_FOLDER.set(True)


def load(path: Path) -> dict[str, str]:
    """Read a file of `name=value` lines; raises CommandFailed for what is missing, unknown or cannot be."""
    try:
        text = path.read_bytes()[: MAX_BYTES + 1].decode()
    except OSError as error:
        raise _wrong(path, f"{error.strerror or error}", "name a file that can be read") from None
    except UnicodeDecodeError:
        raise _wrong(path, "it is not text", "write it in UTF-8") from None
    if len(text) > MAX_BYTES:
        raise _wrong(path, f"it has more than {MAX_BYTES} bytes", "name another file")
    given: dict[str, str] = {}
    for number, line in enumerate(re.sub(r"\\\r?\n\s*", "", text).splitlines(), 1):
        if not line.strip() or line.lstrip()[0] in "#!":
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise _wrong(path, f"line {number} has no =", "write each setting as name=value")
        given[name.strip()] = value.strip()
    settings = _translated(path, given)
    if settings.keys() & _SECRET and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        print(f"strandline: {path} has a secret, and others may read it: chmod 600 {path}", file=sys.stderr)
    return settings


def _translated(path: Path, given: Mapping[str, str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for name, value in given.items():
        if name in _SAME:
            settings[name] = value
        elif name in _JAVA:
            settings[_JAVA[name]] = value
        elif name in _TYPES:
            if value.upper() != _TYPES[name]:
                raise _wrong(path, f"{name}={value} cannot be read", f"convert the file to {_TYPES[name]}")
        elif _is_java_s_for_tokens(name, value):
            continue
        elif name == _JAAS:
            options = {key: re.sub(r"\\(.)", r"\1", text) for key, text in _OPTION.findall(value)}
            if not options.keys() >= {"username", "password"}:
                raise _wrong(path, f'{_JAAS} has no username="…" and password="…"', "write both in quotes")
            settings |= {"sasl.username": options["username"], "sasl.password": options["password"]}
        else:
            known = ", ".join(sorted((*_SAME, *_JAVA, _JAAS, _HANDLER)))
            raise _wrong(path, f"{name} is not known", f"leave it out; known are {known}")
    # Java writes nothing for "do not compare names", librdkafka the word.
    if settings.get("ssl.endpoint.identification.algorithm") == "":
        settings["ssl.endpoint.identification.algorithm"] = "none"
    protocol = settings.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise _wrong(path, f"security.protocol={protocol}", f"write one of {', '.join(_PROTOCOLS)}")
    if settings.get("sasl.mechanism", "").upper() == OAUTHBEARER:
        settings["sasl.mechanism"] = OAUTHBEARER
        if TOKEN_URL not in settings and TOKEN_VARIABLE not in os.environ:
            cure = f"write {TOKEN_URL}=file:///PATH, or set the variable {TOKEN_VARIABLE}"
            raise _wrong(path, f"{OAUTHBEARER} needs a token", cure)
        token_path(settings)
    elif protocol.startswith("SASL_") and not settings.keys() >= {"sasl.username", "sasl.password"}:
        raise _wrong(path, f"{protocol} needs a user", f"write sasl.username and sasl.password, or {_JAAS}")
    return settings


def _is_java_s_for_tokens(name: str, value: str) -> bool:
    if name == _HANDLER:
        return value.endswith(".OAuthBearerLoginCallbackHandler")
    return name == _JAAS and value.partition(" ")[0].endswith(".OAuthBearerLoginModule")


def _wrong(path: Path, cause: str, cure: str) -> CommandFailed:
    return CommandFailed(f"{path}: {cause}", cure, MISUSED)
