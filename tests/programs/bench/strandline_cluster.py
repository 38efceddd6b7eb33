"""Three nodes of Strandline, as a peer under measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from strandline.cluster.local import LocalCluster
from strandline.cluster.ports import free_ports


class StrandlineCluster:
    """Strandline with its own defaults."""

    name = "Strandline"
    secure = False
    """Whether all ports have TLS and logins."""

    def __init__(self, folder: Path, settings: Sequence[str], *, storage: str | None = None) -> None:
        """`storage` is the objects' URL, if they are not to be in a folder below `folder`."""
        self._storage = storage
        self.folder = folder
        self._local = LocalCluster(folder)
        self._settings = settings

    @property
    def bootstrap(self) -> str:
        return self._local.description.bootstrap

    @property
    def security(self) -> Mapping[str, str]:
        """Settings of a librdkafka client besides the address."""
        return {}

    @property
    def pids(self) -> list[int]:
        return [node.pid for node in self._local.description.nodes.values() if node.pid is not None]

    def up(self) -> None:
        self._local.up(
            3, choose_ports=free_ports, storage=self._storage, settings=self._settings, secure=self.secure
        )

    def kill(self, node: int) -> None:
        self._local.kill(node)

    def start(self, node: int) -> None:
        self._local.start(node, timeout=0)

    def down(self) -> None:
        self._local.down()
