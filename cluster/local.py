"""A cluster on this machine: started with one call, looked at, hurt on purpose, and taken down again.

It is what the first five minutes, the demonstration, the benchmarks and the tests of whole clusters stand on.
Nodes are processes of their own that outlive the command that started them; `cluster.json` in the folder is
how the next command finds them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cluster.admin_client import AdminClient
from cluster.failure import MISUSED, CommandFailed
from cluster.local_files import Description, LocalNode
from cluster.own_process import OwnProcess
from cluster.ports import Ports, holder, is_free, usual_ports

NODE_PROGRAM: Final = (sys.executable, "-P", "-m", "node.process")
HEALTHY_SECONDS: Final = 60.0
STOP_SECONDS: Final = 30.0
_KILL_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.03
_LOCK_SECONDS: Final = 120.0
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
    """Progress that nobody wants to see."""


class LocalCluster:
    """The cluster of one folder. What cannot be done raises CommandFailed, with cause and cure.

    `program` is the command that runs one node, to which `--config FILE` and the settings are added.
    """

    def __init__(self, folder: Path | str, *, program: Sequence[str] = NODE_PROGRAM) -> None:
        self.folder = Path(folder).absolute()
        self._program = tuple(program)

    @property
    def description(self) -> Description:
        """What the folder says at this moment."""
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
        settings: Sequence[str] = (),
        timeout: float = HEALTHY_SECONDS,
        progress: Progress = quiet,
    ) -> list[int]:
        """Make the cluster (3 nodes, the usual ports) or start what of it does not run; the nodes started.

        Returns when all are healthy. When they are not within `timeout` seconds, or one dies, those that this
        call started are stopped again. A cluster that exists keeps what it was made with.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._alone():
            there = Description.load(self.folder)
            if there is None:
                found = self._new(3 if nodes is None else nodes, choose_ports, storage, settings)
            else:
                found = there
                _check_same(found, nodes, storage, settings)
            idle = [node for node in found.nodes.values() if node.pid is None]
            _check_ports(idle)
            if there is None:
                found.create()
            try:
                for node in idle:
                    self._spawn(found, node)
                self._wait_healthy(list(found.nodes.values()), timeout, progress)
            except BaseException:
                self._stop(found, idle, STOP_SECONDS)
                raise
            return [node.node for node in idle]

    def down(self, timeout: float = STOP_SECONDS, progress: Progress = quiet) -> list[int]:
        """SIGTERM to every node, then wait; the nodes that ran. Who is still there is killed, and named."""
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

    def stop(self, node: int, timeout: float = STOP_SECONDS) -> None:
        """SIGTERM to one node, then wait; CommandFailed when it had to be killed."""
        with self._alone():
            found, each = self._find(node)
            if self._stop(found, [each], timeout):
                raise CommandFailed(
                    f"node {node} did not stop within {timeout:g} s and was killed", f"see {each.log}"
                )

    def kill(self, node: int) -> int:
        """SIGKILL to one node, as a crash would; its pid. Returns when it is gone."""
        with self._alone():
            _, each = self._find(node)
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

    def start(self, node: int, *, timeout: float = HEALTHY_SECONDS, progress: Progress = quiet) -> bool:
        """Start one node again on its folder; False when it runs already.

        Returns when it is healthy; `timeout` 0 does not wait for that. A node
        that is not healthy in time goes on running; CommandFailed tells why it is not.
        """
        with self._alone():
            found, each = self._find(node)
            if each.pid is not None:
                return False
            _check_ports([each])
            self._spawn(found, each)
        if timeout > 0:
            self._wait_healthy([each], timeout, progress)
        return True

    def status(self) -> list[NodeStatus]:
        """Every node as it is now; asks each that runs for its health."""
        answers = []
        for node in self.description.nodes.values():
            pid = node.pid
            problem: str | None
            if pid is None:
                problem = "does not run" if node.process is None else f"does not run ({node.last_words()})"
            else:
                problem = AdminClient(node.admin).health()
            answers.append(NodeStatus(node.node, pid, problem, node.kafka, node.admin, str(node.log)))
        return answers

    def _missing(self) -> CommandFailed:
        return CommandFailed(
            f"there is no cluster in {self.folder}",
            "make one with `strandline cluster up`, or name another folder with --cluster",
        )

    def _find(self, node: int) -> tuple[Description, LocalNode]:
        found = self.description
        if node not in found.nodes:
            raise CommandFailed(
                f"there is no node {node} in {self.folder}",
                f"there are {', '.join(map(str, found.nodes))}",
                MISUSED,
            )
        return found, found.nodes[node]

    def _new(
        self, nodes: int, choose_ports: PortChoice, storage: str | None, settings: Sequence[str]
    ) -> Description:
        if not 1 <= nodes <= _MOST_NODES:
            raise CommandFailed(
                f"{nodes} nodes are not a cluster", f"ask for 1 to {_MOST_NODES}, best an odd number", MISUSED
            )
        ids = range(1, nodes + 1)
        return Description.new(self.folder, choose_ports(ids), storage, settings)

    def _spawn(self, found: Description, node: LocalNode) -> None:
        command = [*self._program, "--config", str(node.config)]
        for setting in found.settings:
            command += ["--set", setting]
        node.process = OwnProcess.spawn(command, node.log, dict(os.environ))
        found.save()  # at once: a process that no file names would be lost

    def _stop(self, found: Description, nodes: Sequence[LocalNode], timeout: float) -> list[int]:
        """SIGTERM, wait, SIGKILL to the rest; who needed that."""
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

    def _wait_healthy(self, nodes: Sequence[LocalNode], timeout: float, progress: Progress) -> None:
        deadline = time.monotonic() + timeout
        waiting: dict[int, str] = {node.node: "has just started" for node in nodes}
        by_id = {node.node: node for node in nodes}
        while waiting:
            for node in list(waiting):
                each = by_id[node]
                if each.pid is None:
                    raise CommandFailed(
                        f"node {node} died: {each.last_words() or 'it left no word'}",
                        f"the cause is in {each.log}",
                    )
                told = AdminClient(each.admin).health()
                if told is None:
                    del waiting[node]
                else:
                    waiting[node] = told
            progress(f"{len(nodes) - len(waiting)} of {len(nodes)} nodes healthy")
            if waiting and time.monotonic() >= deadline:
                late, problem = next(iter(waiting.items()))
                raise CommandFailed(
                    f"node {late} is not healthy after {timeout:g} s: {problem}",
                    f"see {by_id[late].log}; more time: --timeout",
                )
            if waiting:
                time.sleep(_POLL_SECONDS)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Two commands that start and stop nodes of one cluster wait for each other."""
        if not self.folder.is_dir():
            raise self._missing()
        deadline = time.monotonic() + _LOCK_SECONDS
        with (self.folder / "cluster.lock").open("w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise CommandFailed(
                            f"another command has been at work on {self.folder} for {_LOCK_SECONDS:g} s",
                            "wait for it, or end it, and try again",
                        ) from None
                time.sleep(_POLL_SECONDS)
            yield


def _check_same(
    found: Description,
    nodes: int | None,
    storage: str | None,
    settings: Sequence[str],
) -> None:
    """What was asked for must be what is there: nothing of it can be changed by asking again."""
    differs = None
    if nodes is not None and nodes != len(found.nodes):
        differs = f"{len(found.nodes)} nodes"
    elif storage is not None and storage != found.storage:
        differs = f"its objects in {found.storage}"
    elif settings and tuple(settings) != found.settings:
        differs = f"the settings {' '.join(found.settings) or '(none)'}"
    if differs is not None:
        raise CommandFailed(
            f"the cluster in {found.folder} has {differs}",
            "leave the option away, or make another cluster in another folder with --cluster",
            MISUSED,
        )


def _check_ports(nodes: Sequence[LocalNode]) -> None:
    for node in nodes:
        for use, port in (("Kafka", node.ports.kafka), ("HTTP", node.ports.admin), ("mesh", node.ports.mesh)):
            if not is_free(port):
                raise CommandFailed(
                    f"port {port} ({use} of node {node.node}) is in use by {holder(port)}",
                    "end that process, or make a new cluster with --free-ports",
                )
