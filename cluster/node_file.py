"""The TOML file of a local cluster's node: what `cluster up` decides, and what `--set` says over it.

Settings go into the file, which only its owner may read, and never to a node's command line, which every user
of the machine sees: there are keys of object stores among them. The node's own modules are imported where
they are needed, since most commands need none.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.ports import LOOPBACK, Ports

_DECIDED: Final = {
    "node": ("id", "data"),
    "cluster": ("id", "secret", "nodes", "seeds", "first_user"),
    "mesh": ("host", "port", "certificate", "key", "ca"),
    "kafka": ("port",),
    "listeners": tuple(f"kafka.{key}" for key in ("port", "protocol", "certificate", "key", "nodes_ca")),
    "admin": ("port", "certificate", "key", "logins"),
    "storage": ("url",),
}
"""Differ from node to node, or are kept in cluster.json as well."""
_OPTIONS: Final = "storage.options."
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class NodeSecurity:
    """Settings of a node with TLS and logins on all ports; the files are PEM."""

    certificate: str
    key: str
    authority: str
    first_user: str
    super_user: str

    def sections(self, ports: Ports) -> dict[str, dict[str, Any]]:
        """In place of, or beside, those of a node without them."""
        own = {"certificate": self.certificate, "key": self.key}
        return {
            "listeners.kafka": {
                "host": LOOPBACK,
                "port": ports.kafka,
                "protocol": "SASL_SSL",
                **own,
                "nodes_ca": self.authority,
            },
            "mesh": {**own, "ca": self.authority},
            "admin": {"host": LOOPBACK, "port": ports.admin, **own, "logins": True},
            "authorization": {"enabled": True, "super_users": [self.super_user]},
        }


@dataclass(frozen=True, slots=True)
class NodeFile:
    """One node's own values; `data` is its folder, `peers` "id@host:port" of the nodes that found the
    cluster, or "host:port" of those that a node which `joins` asks."""

    node: int
    data: Path
    ports: Ports
    cluster: str
    secret: str
    peers: Sequence[str]
    storage: str
    security: NodeSecurity | None = None
    joins: bool = False

    def text(self, settings: Sequence[str] = ()) -> str:
        """TOML. `settings` are "section.key=value", and known to be good (`check`)."""
        from strandline.node.config.node_config import parsed

        document: dict[str, dict[str, Any]] = {
            "": {},
            "node": {"id": self.node, "data": str(self.data)},
            "cluster": {
                "id": self.cluster,
                "secret": self.secret,
                "seeds" if self.joins else "nodes": list(self.peers),
            },
            "storage": {"url": self.storage},
        }
        if self.security is None:
            document["kafka"] = {"host": LOOPBACK, "port": self.ports.kafka}
            document["admin"] = {"host": LOOPBACK, "port": self.ports.admin}
        else:
            document["cluster"]["first_user"] = self.security.first_user
            document |= self.security.sections(self.ports)
        if self.joins:
            document["mesh"] = {**document.get("mesh", {}), "host": LOOPBACK, "port": self.ports.mesh}
        for setting in settings:
            key, _, text = setting.partition("=")
            section, _, name = key.strip().rpartition(".")
            value = parsed(text)
            if key.strip().startswith(_OPTIONS):
                section, name = _OPTIONS.rstrip("."), key.strip().removeprefix(_OPTIONS)
                # Options are text: a key that looks like a number stays as it was written.
                value = value if isinstance(value, str) else text
            document.setdefault(section, {})[name] = value
        lines = [
            f"# Node {self.node} of a cluster on this machine, written by `strandline cluster up`,",
            "# and again when that is given other settings with --set.",
            "# Keep it to yourself: the secret admits to the cluster.",
        ]
        for section, values in document.items():
            if section:
                lines += ["", f"[{section}]"]
            lines += [f"{_key(name)} = {toml(value)}" for name, value in values.items()]
        return "\n".join(lines) + "\n"

    def check(self, settings: Sequence[str], environ: Mapping[str, str]) -> None:
        """CommandFailed unless a node would take it with these settings; leaves nothing behind."""
        from strandline.node.config.node_config import ConfigError, load

        for setting in settings:
            key = setting.partition("=")[0].strip()
            section, _, name = key.partition(".")
            if name in _DECIDED.get(section, ()):
                cure = "use --storage" if key == "storage.url" else "leave it out"
                raise CommandFailed(
                    f"--set {setting}: {key} is decided by `cluster up`, for each node", cure, MISUSED
                )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "node.toml"
            try:
                write_private(path, self.text())
                load(str(path), environ, settings)
                self.text(settings).encode()
            except ConfigError as error:
                told = str(error).removeprefix(f"{path}: ")
                raise CommandFailed(told, "nothing was written or started", MISUSED) from None
            except UnicodeEncodeError:
                raise CommandFailed(
                    "a setting, or the folder's or the storage's name, is not text", "write UTF-8", MISUSED
                ) from None


def check_file(path: Path, environ: Mapping[str, str]) -> None:
    """CommandFailed unless a node would take the file as it is."""
    from strandline.node.config.node_config import ConfigError, load

    try:
        load(str(path), environ, ())
    except ConfigError as error:
        raise CommandFailed(
            str(error),
            "correct the file, or have it written again: `strandline cluster up` with --set or --no-settings",
            MISUSED,
        ) from None


def write_private(path: Path, text: str) -> None:
    """As a new file in the old one's place, so that a reader of an old one cannot read this one."""
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    partial.replace(path)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _quoted(name)


def toml(value: Any) -> str:
    """A value as TOML has it, in one line."""
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(name)} = {toml(each)}" for name, each in value.items()) + "}"
    return str(value)  # numbers and times are written as TOML writes them


def _quoted(text: str) -> str:
    # JSON's strings are TOML's basic strings, but for pairs of surrogates, which this way are not written,
    # and for DEL, which TOML wants escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
