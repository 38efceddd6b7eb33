"""A cluster on this machine: started with one call, looked at, hurt on purpose, and taken down again.

It is what the first five minutes, the demonstration, the benchmarks and the tests of whole clusters stand on.
Nodes are processes of their own that outlive the command that started them; `cluster.json` in the folder is
how the next command finds them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from strandline.cluster.admin_client import AdminClient
from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.folder_lock import alone, new_folder
from strandline.cluster.local_files import DESCRIPTION, Description, LocalNode, check_whole
from strandline.cluster.local_growth import grown, too_few
from strandline.cluster.node_file import check_file
from strandline.cluster.own_process import OwnProcess
from strandline.cluster.ports import Ports, holder, is_free, usual_ports
from strandline.cluster.waiting import FolderRefused, StorageFails, wait_healthy

NODE_PROGRAM: Final = (sys.executable, "-P", "-m", "strandline.node.process")
HEALTHY_SECONDS: Final = 60.0
STOP_SECONDS: Final = 30.0
_KILL_SECONDS: Final = 10.0
_MOST_NODES: Final = 15

Progress = Callable[[str], None]
PortChoice = Callable[[Sequence[int]], dict[int, Ports]]


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node as it is now; `problem` is None when it is healthy."""

    node: int
    pid: int | None
    problem: str | None
    kafka: str
    admin: str
    log: str


def quiet(_: str) -> None:
    """Discard progress messages."""


class LocalCluster:
    """The cluster of one folder. What cannot be done raises CommandFailed, with cause and cure.

    `program` is the command that runs one node, to which `--config FILE` is added.
    """

    def __init__(self, folder: Path | str, *, program: Sequence[str] = NODE_PROGRAM) -> None:
        self.folder = Path(folder).absolute()
        self._program = tuple(program)

    @property
    def description(self) -> Description:
        """The folder's description, read now."""
        found = Description.load(self.folder)
        if found is None:
            raise self._missing()
        return found

    def up(
        self,
        nodes: int | None = None,
        *,
        choose_ports: PortChoice = usual_ports,
        storage: str | None = None,
        settings: Sequence[str] | None = None,
        secure: bool = False,
        timeout: float = HEALTHY_SECONDS,
        progress: Progress = quiet,
    ) -> list[int]:
        """Make the cluster (3 nodes, the usual ports) or start what of it does not run; the nodes started.

        More nodes than there are join the cluster, once it is healthy without them.

        `settings` of None are those there are. Others replace them all, where no node runs. Everything is
        checked before anything is written. `secure` makes one whose ports all have TLS and logins; a cluster
        stays what it was made as.

        Returns when all are healthy. When they are not within `timeout` seconds, or one dies, those that this
        call started are stopped again; unless nothing is wrong but the object store, and the cluster was
        healthy before. Nodes and storage stay what the cluster was made with, the storage from when it is
        first healthy.
        """
        if storage is not None and not urlsplit(storage).scheme:
            storage = str(Path(storage).absolute())  # s3:/bucket is a slip of the pen, and no folder
        with new_folder(self.folder, DESCRIPTION):
            check_whole(self.folder)
            there = Description.load(self.folder)
            if there is None:
                count = 3 if nodes is None else nodes
                found = self._new(count, choose_ports, storage, settings or (), secure)
            else:
                found = there
                _check_same(found, nodes, storage, secure)
                wanted = found.settings if settings is None else tuple(settings)
            idle = [node for node in found.nodes.values() if node.pid is None]
            check_ports(idle)
            if there is None:
                found.check(found.settings)
                found.create()
            elif wanted != found.settings or (storage or found.storage) != found.storage:
                _reconfigure(found, storage or found.storage, wanted)
            found.renew()
            for node in idle:
                check_file(node.config, os.environ)
            try:
                for node in idle:
                    self._spawn(found, node)
                wait_healthy(list(found.nodes.values()), timeout, progress)
                self._ready(found)
                if added := grown(found, nodes, choose_ports):
                    idle += added
                    check_ports(added)
                    for node in added:
                        self._spawn(found, node)
                    wait_healthy(list(found.nodes.values()), timeout, progress)
            except BaseException as error:
                left_running = isinstance(error, FolderRefused) or (
                    isinstance(error, StorageFails) and found.ready
                )
                if not left_running:
                    self._stop(found, idle, STOP_SECONDS)
                raise
            return [node.node for node in idle]

    def down(self, timeout: float = STOP_SECONDS, progress: Progress = quiet) -> list[int]:
        """Send SIGTERM to every node and wait; returns the nodes that ran. Nodes still alive then are killed,
        and named."""
        with self._alone():
            found = self.description
            running = [node for node in found.nodes.values() if node.pid is not None]
            progress(f"stopping {len(running)} nodes")
            stubborn = self._stop(found, running, timeout)
        if stubborn:
            raise CommandFailed(
                f"node {', '.join(map(str, stubborn))} did not stop within {timeout:g} s and was killed",
                f"what is acknowledged is safe; see its log in {self.folder}",
            )
        return [node.node for node in running]

    def stop(self, node: int, timeout: float = STOP_SECONDS) -> bool:
        """SIGTERM to one node, then wait; whether it ran. CommandFailed when it had to be killed."""
        with self._alone():
            found = self.description
            (each,) = _chosen(found, [node])
            ran = each.pid is not None
            self._stop_well(found, each, timeout)
        return ran

    def kill(self, node: int) -> int:
        """SIGKILL to one node, as a crash would; its pid. Returns when it is gone."""
        with self._alone():
            (each,) = _chosen(self.description, [node])
            pid = each.pid
            process = each.process
            if process is None or pid is None or not process.signal(signal.SIGKILL):
                raise CommandFailed(f"node {node} does not run", f"start it: strandline cluster start {node}")
            if not process.wait(_KILL_SECONDS):
                raise CommandFailed(
                    f"pid {pid} (node {node}) is still there {_KILL_SECONDS:g} s after SIGKILL",
                    "the kernel holds it, most often in a disk that does not answer; see dmesg",
                )
            return pid

    def start(self, *nodes: int, timeout: float = HEALTHY_SECONDS, progress: Progress = quiet) -> list[int]:
        """Start nodes again, each on its folder: these, or all that do not run. Which of them did not run.

        Returns when those are healthy; `timeout` 0 does not wait for that. A node
        that is not healthy in time goes on running; CommandFailed tells why it is not.
        """
        with self._alone():
            check_whole(self.folder)
            found = self.description
            idle = [each for each in _chosen(found, nodes) if each.pid is None]
            check_ports(idle)
            for each in idle:
                check_file(each.config, os.environ)
            for each in idle:
                self._spawn(found, each)
            self._ready(found)  # it may be, sooner or later
        if timeout > 0:
            wait_healthy(idle, timeout, progress)
        return [each.node for each in idle]

    def restart(self, *nodes: int, timeout: float = HEALTHY_SECONDS, progress: Progress = quiet) -> list[int]:
        """Stop and start these nodes, or all, one after the other, each once all that run are healthy.

        So clients lose one node at a time. Ends at the first that does not stop by itself or is not healthy
        in time.
        """
        with self._alone():
            check_whole(self.folder)
            chosen = _chosen(found := self.description, nodes)
            for each in chosen:
                check_file(each.config, os.environ)
            for each in chosen:
                progress(f"restarting node {each.node}")
                self._stop_well(found, each)
                self._spawn(found, each)
                wait_healthy([one for one in found.nodes.values() if one.pid is not None], timeout, progress)
        return [each.node for each in chosen]

    def status(self) -> list[NodeStatus]:
        """Every node as it is now; asks each that runs for its health."""
        answers = []
        for node in self.description.nodes.values():
            pid = node.pid
            problem: str | None
            if pid is None:
                last = "" if node.process is None else f"; its log ends with: {node.last_words()}"
                problem = f"does not run{last}"
            else:
                problem = AdminClient(node.admin).health()
            answers.append(NodeStatus(node.node, pid, problem, node.kafka, node.admin, str(node.log)))
        return answers

    def chosen(self, *nodes: int) -> list[LocalNode]:
        """These nodes as the folder describes them, or all; CommandFailed when there is no such node."""
        return _chosen(self.description, nodes)

    def _missing(self) -> CommandFailed:
        return CommandFailed(
            f"there is no cluster in {self.folder}",
            "make one with `strandline cluster up`, or name another folder with --cluster",
        )

    def _new(
        self,
        nodes: int,
        choose_ports: PortChoice,
        storage: str | None,
        settings: Sequence[str],
        secure: bool,
    ) -> Description:
        if not 1 <= nodes <= _MOST_NODES:
            raise CommandFailed(
                f"{nodes} nodes are not a cluster", f"ask for 1 to {_MOST_NODES}, best an odd number", MISUSED
            )
        ids = range(1, nodes + 1)
        return Description.new(self.folder, choose_ports(ids), storage, settings, secure=secure)

    def _spawn(self, found: Description, node: LocalNode) -> None:
        command = [*self._program, "--config", str(node.config)]
        node.process = OwnProcess.spawn(command, node.log, dict(os.environ))
        found.save()  # at once: a process that no file names would be lost

    def _ready(self, found: Description) -> None:
        if not found.ready:
            found.ready = True
            found.save()

    def _stop(self, found: Description, nodes: Sequence[LocalNode], timeout: float) -> list[int]:
        """Send SIGTERM, wait, and send SIGKILL to the rest; returns those that needed it."""
        running = [(node, node.process) for node in nodes if node.process is not None]
        for _, process in running:
            process.signal(signal.SIGTERM)
            process.signal(signal.SIGCONT)  # one that was stopped could not hear the first
        deadline = time.monotonic() + timeout
        stubborn = []
        for node, process in running:
            if not process.wait(max(0.0, deadline - time.monotonic())):
                process.signal(signal.SIGKILL)
                process.wait(_KILL_SECONDS)
                stubborn.append(node.node)
            node.process = None
        found.save()
        return stubborn

    def _stop_well(self, found: Description, each: LocalNode, timeout: float = STOP_SECONDS) -> None:
        if self._stop(found, [each], timeout):
            raise CommandFailed(
                f"node {each.node} did not stop within {timeout:g} s and was killed", f"see {each.log}"
            )

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if not self.folder.is_dir():
            raise self._missing()
        with alone(self.folder):
            yield


def _chosen(found: Description, nodes: Sequence[int]) -> list[LocalNode]:
    """These nodes in this order, each once, or all of them when none is named."""
    for node in nodes:
        if node not in found.nodes:
            raise CommandFailed(
                f"there is no node {node} in {found.folder}",
                f"there are {', '.join(map(str, found.nodes))}",
                MISUSED,
            )
    return [found.nodes[node] for node in dict.fromkeys(nodes or found.nodes)]


def _check_same(found: Description, nodes: int | None, storage: str | None, secure: bool) -> None:
    """Refuse a number of nodes, a storage or security that differs from the existing cluster's."""
    differs = None
    if nodes is not None and nodes < len(found.nodes):
        raise too_few(found, nodes)
    if nodes is not None and nodes > _MOST_NODES:
        raise CommandFailed(f"{nodes} nodes are too many here", f"ask for {_MOST_NODES} at most", MISUSED)
    if storage is not None and storage != found.storage and found.ready:
        differs = f"its objects in {found.storage}"
    elif secure and not found.secure:
        differs = "neither TLS nor logins"
    if differs is not None:
        raise CommandFailed(
            f"the cluster in {found.folder} has {differs}",
            "leave the option out, or make another cluster in another folder with --cluster",
            MISUSED,
        )


def _reconfigure(found: Description, storage: str, settings: Sequence[str]) -> None:
    if any(node.pid is not None for node in found.nodes.values()):
        raise CommandFailed(
            f"the cluster in {found.folder} runs with the settings {' '.join(found.settings) or '(none)'}",
            f"to give it others, first take it down: strandline cluster down --cluster {found.folder}",
            MISUSED,
        )
    replace(found, storage=storage).check(settings)
    if storage != found.storage:
        found.move(storage)
    found.configure(settings)


def check_ports(nodes: Sequence[LocalNode]) -> None:
    """Raise CommandFailed, with the process that has it, where a port of these nodes is in use."""
    for node in nodes:
        for use, port in (("Kafka", node.ports.kafka), ("HTTP", node.ports.admin), ("mesh", node.ports.mesh)):
            if not is_free(port):
                raise CommandFailed(
                    f"port {port} ({use} of node {node.node}) is in use by {holder(port)}",
                    "end that process, or make a new cluster with --free-ports",
                )
