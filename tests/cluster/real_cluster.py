"""Three real nodes for a test: real processes, disks and sockets, and always taken down again.

`real_cluster` is for tests that want their own to hurt; a module whose tests share one makes its own fixture
of module scope around `running_cluster`.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from strandline.cluster.local import LocalCluster
from strandline.cluster.local_files import Description
from strandline.cluster.ports import free_ports
from tests.cluster.forked_nodes import ForkedCluster

START_SECONDS = 60.0
STOP_SECONDS = 10.0
_LOG_LINES = 30


class RealCluster:
    """A running cluster. Nodes are 1 to 3; what is done to one is done when the call returns."""

    def __init__(self, local: LocalCluster) -> None:
        self.local = local
        self.folder = local.folder

    @property
    def description(self) -> Description:
        return self.local.description

    @property
    def bootstrap(self) -> str:
        """For a Kafka client."""
        return self.description.bootstrap

    @property
    def admin(self) -> list[str]:
        """Each node's HTTP address."""
        return [node.admin for node in self.description.nodes.values()]

    @property
    def pids(self) -> dict[int, int]:
        """Of the nodes that run."""
        return {node.node: node.pid for node in self.description.nodes.values() if node.pid is not None}

    def kill(self, node: int) -> None:
        """SIGKILL."""
        self.local.kill(node)

    def stop(self, node: int) -> None:
        """SIGTERM, and wait."""
        self.local.stop(node, STOP_SECONDS)

    def start(self, node: int, *, wait: bool = True) -> None:
        """Once more on the same folder; `wait` until it is healthy, which needs a majority."""
        self.local.start(node, timeout=START_SECONDS if wait else 0)

    def pause(self, node: int) -> None:
        """SIGSTOP: it is there, and does nothing."""
        self._signal(node, signal.SIGSTOP)

    def resume(self, node: int) -> None:
        """SIGCONT."""
        self._signal(node, signal.SIGCONT)

    def logs(self) -> str:
        """The end of each node's log."""
        told = []
        for node in self.description.nodes.values():
            lines = node.log.read_text(errors="replace").splitlines() if node.log.exists() else ["(none)"]
            told += [f"--- log of node {node.node}", *lines[-_LOG_LINES:]]
        return "\n".join(told)

    def _signal(self, node: int, number: signal.Signals) -> None:
        process = self.description.nodes[node].process
        assert process is not None
        assert process.signal(number), f"node {node} does not run"


@contextlib.contextmanager
def running_cluster(
    folder: Path,
    nodes: int = 3,
    settings: Sequence[str] = (),
    storage: str | None = None,
    *,
    secure: bool = False,
) -> Iterator[RealCluster]:
    """A cluster in `folder` on free ports while the block lasts; if it fails, its logs on stderr.

    `storage` is a bucket's URL; None is a folder below `folder`. `secure` is that of `cluster up`.
    """
    gc.collect()  # clients that earlier tests dropped in a cycle write to stderr until they are freed
    local = ForkedCluster(folder)
    cluster = RealCluster(local)
    try:
        try:
            local.up(
                nodes, choose_ports=free_ports, storage=storage, settings=settings, secure=secure,
                timeout=START_SECONDS,
            )  # fmt: skip
            yield cluster
        except BaseException:
            if Description.load(local.folder) is not None:
                print(cluster.logs(), file=sys.stderr)
            raise
    finally:
        if Description.load(local.folder) is not None:
            local.down(STOP_SECONDS)


@pytest.fixture
def real_cluster(tmp_path: Path) -> Iterator[RealCluster]:
    """Three nodes of this test's own. A failed test finds the ends of their logs in its output."""
    with running_cluster(tmp_path / "cluster") as cluster:
        yield cluster
        print(cluster.logs())  # pytest shows it for a test that failed


def wait(true: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)
