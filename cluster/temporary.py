"""A cluster for as long as a block of a program lasts: nodes of its own in a folder of its own, then nothing.

It is what tests use. Its nodes end with the process that started them, also by `kill -9`; what that leaves of
its folder is removed by the next one that is made.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final, TypeAlias

from strandline.cluster.failure import CommandFailed
from strandline.cluster.local import NODE_PROGRAM, LocalCluster
from strandline.cluster.local_files import Description
from strandline.cluster.node_file import toml
from strandline.cluster.ports import Ports, free_ports, is_free
from strandline.snapshot.extras import require

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 30.0
_KILL_SECONDS: Final = 10.0
_PREFIX: Final = "strandline-local-"
_OWNER: Final = "owner.lock"
_ATTEMPTS: Final = 3
"""Ports that are free when they are chosen may be another's when a node listens."""
_SWEPT: Final = 100
"""Most folders that are checked for remains of a killed process."""
_LOG_LINES: Final = 15

Value: TypeAlias = str | int | float | bool | list[str]


class ClusterError(RuntimeError):
    """A temporary cluster cannot do what was asked: one line with the cause; ends of nodes' logs as notes."""


class TemporaryCluster:
    """A running cluster, made by `local_cluster`. Nodes are numbered from 1. Methods raise ClusterError."""

    def __init__(self, local: LocalCluster) -> None:
        self._local = local

    @property
    def bootstrap(self) -> str:
        """Value of `bootstrap.servers` for a Kafka client."""
        return self._local.description.bootstrap

    @property
    def nodes(self) -> list[int]:
        """The numbers of all nodes, also of those that were stopped."""
        return list(self._local.description.nodes)

    @property
    def admin(self) -> list[str]:
        """Each node's HTTP address, host:port: the API, /health and /metrics."""
        return [node.admin for node in self._local.description.nodes.values()]

    @property
    def cluster_id(self) -> str:
        """The cluster's id, which audits take beside `storage`."""
        return self._local.description.cluster

    @property
    def storage(self) -> str:
        """The folder of its objects: what `spark.read` takes as `url`."""
        return self._local.description.storage

    @property
    def folder(self) -> Path:
        """Everything it keeps. The `strandline` command takes it as --cluster."""
        return self._local.folder

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic; `config` has Kafka's names. The default is 3 replicas, or one on each node."""
        with _told():
            # librdkafka, which a test of another client need not load.
            from strandline.cluster.kafka_client import TopicAdmin
            from strandline.cluster.target import target

            topics = TopicAdmin(target(folder=self.folder))
            topics.create(name, partitions, replication_factor, config or {})

    def grow(self, nodes: int) -> None:
        """Have further nodes join, until there are so many; returns when all are healthy."""
        with _told():
            self._local.up(nodes, choose_ports=free_ports, timeout=START_SECONDS)

    def kill(self, node: int) -> None:
        """SIGKILL to a node, as a crash would; returns when it is gone."""
        with _told():
            self._local.kill(node)

    def stop(self, node: int) -> None:
        """Stop a node as an operator would, with its leadership handed over; returns when it is gone."""
        with _told():
            self._local.stop(node, STOP_SECONDS)

    def start(self, node: int) -> None:
        """Start a node again on what it has stored; returns when it is healthy, which takes a majority."""
        with _told():
            self._local.start(node, timeout=START_SECONDS)

    def log(self, node: int) -> str:
        """Text of a node's log file so far."""
        with _told():
            (chosen,) = self._local.chosen(node)
        return chosen.log.read_text(errors="replace")


@contextlib.contextmanager
def local_cluster(nodes: int = 1, *, config: Mapping[str, Value] | None = None) -> Iterator[TemporaryCluster]:
    """Run a cluster while the block lasts: `nodes` of it on the loopback and on free ports, all healthy.

    `config` are settings of all nodes by the names of docs/operating.md: `{"topics.partitions": 6}`. Raises
    ClusterError when they do not start, or are not healthy within START_SECONDS, and ExtraMissing without the
    extra `node`.
    """
    require("node")
    settings = [f"{name}={toml(value)}" for name, value in (config or {}).items()]
    _sweep()
    for attempt in range(1, _ATTEMPTS + 1):
        with _own_folder() as folder:
            local = LocalCluster(folder / "cluster", program=(*NODE_PROGRAM, "--parent", str(os.getpid())))
            try:
                if _up(local, nodes, settings, last=attempt == _ATTEMPTS):
                    yield TemporaryCluster(local)
                    return
            finally:
                _kill(local)


def _up(local: LocalCluster, nodes: int, settings: Sequence[str], *, last: bool) -> bool:
    """Start the nodes; False when another process has taken one of their ports meanwhile, if not `last`."""
    chosen: dict[int, Ports] = {}

    def choose(wanted: Sequence[int]) -> dict[int, Ports]:
        chosen.update(free_ports(wanted))
        return chosen

    try:
        local.up(nodes, choose_ports=choose, settings=settings, timeout=START_SECONDS)
    except CommandFailed as error:
        ports = [port for each in chosen.values() for port in (each.kafka, each.admin, each.mesh)]
        if not last and not all(map(is_free, ports)):
            return False
        told = ClusterError(error.cause)
        found = Description.load(local.folder)
        for node in [] if found is None else found.nodes.values():
            if node.log.exists():
                lines = node.log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
                told.add_note("\n".join([f"log of node {node.node}:", *lines]))
        raise told from None
    return True


def _kill(local: LocalCluster) -> None:
    """End all nodes as a crash would: what they could still save is thrown away."""
    found = Description.load(local.folder)
    processes = [] if found is None else [node.process for node in found.nodes.values()]
    running = [process for process in processes if process is not None and process.signal(signal.SIGKILL)]
    deadline = time.monotonic() + _KILL_SECONDS
    for process in running:
        process.wait(max(0.0, deadline - time.monotonic()))


@contextlib.contextmanager
def _own_folder() -> Iterator[Path]:
    """A new folder, known to others as in use while this process lives, and removed after the block."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        # The lock file gets its name once it is locked, so no process finds it without an owner.
        with (folder / f"{_OWNER}.new").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            Path(lock.name).rename(folder / _OWNER)
            yield folder
    finally:
        _remove(folder)


def _sweep() -> None:
    """Remove folders of this user whose process has ended."""
    for _, folder in zip(range(_SWEPT), Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"), strict=False):
        with contextlib.suppress(OSError):  # another user's, or removed meanwhile
            if folder.lstat().st_uid == os.getuid() and (lock := _abandoned(folder / _OWNER)):
                with lock:
                    _remove(folder)


def _abandoned(path: Path) -> IO[str] | None:
    """The lock, held by this process now; None when its owner lives."""
    lock = path.open()
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def _remove(folder: Path) -> None:
    """Remove a folder, from which a node's worker may take a moment longer to go; the lock in it last."""
    deadline = time.monotonic() + _KILL_SECONDS
    while time.monotonic() < deadline:
        shutil.rmtree(folder / "cluster", ignore_errors=True)
        if not (folder / "cluster").exists():
            break
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Tell a failure as a program has it, not as the command's last line."""
    try:
        yield
    except CommandFailed as error:
        raise ClusterError(str(error)) from None
