"""Files of a local cluster in its folder: one description, and a configuration for each node.

A later command finds the cluster and its processes by `cluster.json`. It identifies every process, so that an
unrelated process with the same pid is not taken for it (own_process.py). The configurations hold the secret
that authenticates nodes to each other, so only the owner may read the folder.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from strandline.cluster import client_settings
from strandline.cluster.failure import MISUSED, CommandFailed, one_line
from strandline.cluster.local_security import USER, LocalSecurity
from strandline.cluster.node_file import NodeFile, write_private
from strandline.cluster.own_process import OwnProcess
from strandline.cluster.ports import LOOPBACK, Ports

DESCRIPTION: Final = "cluster.json"
RESTORING: Final = "restore-under-way"
"""File that is there from before the first data folder of a restore is written until the last one is."""
_FORMAT: Final = 3
"""2 had no `secure`; 1 had the settings on the nodes' command lines instead of in their files."""
_SECRET_BYTES: Final = 32
_SOME_CREDENTIAL: Final = f"SCRAM-SHA-256$4096:c2FsdA==${'A' * 43}=:{'A' * 43}="
"""Of the right form, for a look at settings before anything is made."""


@dataclass(slots=True)
class LocalNode:
    """One node: where it listens, what lies where, and its process while there is one."""

    node: int
    ports: Ports
    folder: Path
    process: OwnProcess | None = None
    secure: bool = False
    joins: bool = False
    """Whether it came to the cluster when that ran already."""

    @property
    def config(self) -> Path:
        return self.folder / f"node-{self.node}.toml"

    @property
    def data(self) -> Path:
        return self.folder / f"node-{self.node}"

    @property
    def log(self) -> Path:
        return self.folder / f"node-{self.node}.log"

    @property
    def kafka(self) -> str:
        return f"{LOOPBACK}:{self.ports.kafka}"

    @property
    def admin(self) -> str:
        return f"{'https://' if self.secure else ''}{LOOPBACK}:{self.ports.admin}"

    @property
    def pid(self) -> int | None:
        """Of the process, as long as it is there."""
        return self.process.pid if self.process is not None and self.process.alive() else None

    def last_words(self) -> str:
        """The last line of its log; of a line that is JSON, its message."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 16_384))
                lines = log.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        try:
            return str(json.loads(last)["message"])
        except (ValueError, KeyError, TypeError):
            return last.removeprefix("strandline: ")


@dataclass(slots=True)
class Description:
    """A local cluster as its folder tells it. `settings` override every node's: "section.key=value"."""

    folder: Path
    cluster: str
    storage: str
    settings: tuple[str, ...]
    nodes: dict[int, LocalNode] = field(default_factory=dict)
    ready: bool = False
    """Whether it may ever have been healthy, and so have records; until then its storage may be another."""
    secure: bool = False
    """Whether all its ports have TLS and logins."""
    gone: tuple[int, ...] = ()
    """Ids of nodes that were removed, which are not given again."""

    @property
    def bootstrap(self) -> str:
        """Bootstrap addresses for a Kafka client."""
        return ",".join(node.kafka for node in self.nodes.values())

    @classmethod
    def new(
        cls,
        folder: Path,
        ports: dict[int, Ports],
        storage: str | None,
        settings: Sequence[str],
        *,
        secure: bool = False,
    ) -> Description:
        """One for a cluster that does not exist yet; writes nothing."""
        made = cls(
            folder=folder,
            cluster=f"local-{secrets.token_hex(4)}",
            storage=storage or str(folder / "objects"),
            settings=tuple(settings),
            secure=secure,
        )
        made.nodes = {node: LocalNode(node, each, folder, secure=secure) for node, each in ports.items()}
        return made

    @classmethod
    def load(cls, folder: Path) -> Description | None:
        """The one in this folder, None when there is none; CommandFailed when it is damaged."""
        path = folder / DESCRIPTION
        try:
            plain = json.loads(path.read_text())
            if plain["format"] not in (2, _FORMAT):
                raise ValueError(f"its format is {plain['format']}, this version reads {_FORMAT}")
            found = cls(
                folder=folder,
                cluster=str(plain["cluster"]),
                storage=str(plain["storage"]),
                settings=tuple(str(setting) for setting in plain["settings"]),
                ready=bool(plain["ready"]),
                secure=bool(plain.get("secure", False)),
                gone=tuple(int(node) for node in plain.get("gone", ())),
            )
            for each in plain["nodes"]:
                node = LocalNode(int(each["id"]), Ports(each["kafka"], each["admin"], each["mesh"]), folder)
                node.secure, node.joins = found.secure, bool(each.get("joins", False))
                if each["process"] is not None:
                    node.process = OwnProcess.from_plain(each["process"])
                found.nodes[node.node] = node
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CommandFailed(
                f"{path} cannot be read ({error!r})",
                "name another folder with --cluster, or look for the processes yourself and delete this one",
                MISUSED,
            ) from error
        found.log_in()
        return found

    @property
    def security(self) -> LocalSecurity:
        """The files of a secure cluster."""
        return LocalSecurity(self.folder)

    def log_in(self) -> None:
        """Have this program's clients log in at this cluster from now on, as its first user."""
        client_settings.of_folder(self.security.client if self.secure else None)

    def check(self, settings: Sequence[str]) -> None:
        """CommandFailed unless every node would take these settings."""
        first_user = f"{USER}:{_SOME_CREDENTIAL}" if self.secure else ""
        for each in self._node_files(secrets.token_hex(_SECRET_BYTES), first_user):
            each.check(settings, os.environ)

    def create(self) -> None:
        """Write what the nodes need to start: folders, configurations with a new secret, the description."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for node in self.nodes.values():
            node.data.mkdir(mode=0o700, exist_ok=True)
        if "://" not in self.storage:
            Path(self.storage).mkdir(mode=0o700, parents=True, exist_ok=True)
        first_user = ""
        if self.secure:
            self.security.make_authority()
            self.renew()
            first_user = self.security.make_user(self.bootstrap)
        self._write(secrets.token_hex(_SECRET_BYTES), first_user)
        self.log_in()

    def renew(self) -> list[int]:
        """Make certificates that are missing or end soon; the nodes that have another."""
        return [node for node in self.nodes if self.security.renew(node)] if self.secure else []

    def configure(self, settings: Sequence[str]) -> None:
        """Rewrite the configurations and the description with these settings instead of the old."""
        self.settings = tuple(settings)
        self._write(*self._secrets())

    def grow(self, ports: dict[int, Ports]) -> list[LocalNode]:
        """Write what these further nodes need to join; the others' files stay as they are."""
        secret, first_user = self._secrets()
        added = [LocalNode(node, each, self.folder, None, self.secure, True) for node, each in ports.items()]
        self.nodes |= {node.node: node for node in added}
        self.renew()
        for node in added:
            node.data.mkdir(mode=0o700, exist_ok=True)
        for each in self._node_files(secret, first_user):
            if each.node in ports:
                write_private(self.nodes[each.node].config, each.text(self.settings))
        self.save()
        return added

    def forget(self, node: int) -> None:
        """Leave a node out that the cluster has removed. Its files stay where they are."""
        del self.nodes[node]
        self.gone = (*self.gone, node)
        self.save()

    def _secrets(self) -> tuple[str, str]:
        """The cluster's secret and its first user, as its nodes' files have them."""
        path = next(iter(self.nodes.values())).config
        try:
            there = tomllib.loads(path.read_text())["cluster"]
            return str(there["secret"]), str(there["first_user"]) if self.secure else ""
        except (OSError, ValueError, LookupError) as error:
            raise CommandFailed(
                f"the cluster's secret cannot be read from {path} ({one_line(repr(error))})",
                "bring the file back, or correct it",
                MISUSED,
            ) from None

    def move(self, storage: str) -> None:
        """Start over with another storage: for a cluster that was never healthy. Call `configure` next."""
        assert not self.ready
        self.storage = storage
        for node in self.nodes.values():
            # What it holds is about the storage that it could not use.
            shutil.rmtree(node.data, ignore_errors=True)
            node.data.mkdir(mode=0o700, exist_ok=True)
        if "://" not in storage:
            Path(storage).mkdir(mode=0o700, parents=True, exist_ok=True)

    def _write(self, secret: str, first_user: str) -> None:
        for each in self._node_files(secret, first_user):
            write_private(self.nodes[each.node].config, each.text(self.settings))
        self.save()

    def _node_files(self, secret: str, first_user: str) -> list[NodeFile]:
        founders = [node for node in self.nodes.values() if not node.joins]
        peers = [f"{node.node}@{LOOPBACK}:{node.ports.mesh}" for node in founders]
        seeds = [f"{LOOPBACK}:{node.ports.mesh}" for node in self.nodes.values()]
        return [
            NodeFile(
                node.node,
                node.data,
                node.ports,
                self.cluster,
                secret,
                [seed for seed in seeds if seed != f"{LOOPBACK}:{node.ports.mesh}"] if node.joins else peers,
                self.storage,
                self.security.of_node(node.node, first_user) if self.secure else None,
                node.joins,
            )
            for node in self.nodes.values()
        ]

    def save(self) -> None:
        """Write the description; a reader sees the old or the new one, never half of it."""
        plain: dict[str, Any] = {
            "format": _FORMAT,
            "cluster": self.cluster,
            "bootstrap": self.bootstrap,
            "storage": self.storage,
            "settings": list(self.settings),
            "ready": self.ready,
            "secure": self.secure,
            "gone": list(self.gone),
            "nodes": [
                {
                    "id": node.node,
                    "kafka": node.ports.kafka,
                    "admin": node.ports.admin,
                    "mesh": node.ports.mesh,
                    "joins": node.joins,
                    "process": None if node.process is None else node.process.to_plain(),
                }
                for node in self.nodes.values()
            ],
        }
        write_private(self.folder / DESCRIPTION, json.dumps(plain, indent=2) + "\n")


def check_whole(folder: Path) -> None:
    """CommandFailed if a restore into this folder broke off, or if of a cluster that was healthy neither data
    folders nor the storage's folder are there: its nodes would found another one, without a record."""
    if (folder / RESTORING).exists():
        raise CommandFailed(
            f"a restore into {folder} broke off", f"repeat it: strandline cluster restore --cluster {folder}"
        )
    found = Description.load(folder)
    if found is None or not found.ready or "://" in found.storage or Path(found.storage).exists():
        return
    if not any(node.data.is_dir() and any(node.data.iterdir()) for node in found.nodes.values()):
        raise CommandFailed(
            f"the storage {found.storage} is missing, and so are the data folders of all nodes",
            f"mount it or bring it back, then: strandline cluster restore --cluster {folder}; for a new"
            " cluster name another folder with --cluster",
        )
