"""Nodes of real clusters, forked from a process that has imported what a node imports.

A node's imports cost 1.5 seconds of processor, more than all else that most nodes of tests do. A node that is
forked is a process like any other from its `main` on: its own session, environment, log, sockets and signals.
That nodes start from nothing is tried by `tests/node` and by the tests of the command line, which never fork.

Nodes with odd and with even ids have a parent each: the parents hash strings differently, so replicas that
depend on the order of a set differ here as they would in production.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from strandline.cluster.local import LocalCluster
from strandline.cluster.local_files import Description, LocalNode
from strandline.cluster.own_process import OwnProcess

_SEEDS: Final = 2
_START_SECONDS: Final = 110.0
"""Of the imports, which take two on a machine that does nothing else."""
_MOST_BYTES: Final = 1 << 20
"""Of a request, nearly all of which is the environment."""
_STARTED_FIELD: Final = 22 - 3
"""proc(5), /proc/pid/stat, counted from the field after the name in parentheses."""


class ForkedCluster(LocalCluster):
    """A local cluster whose nodes are forked."""

    def _spawn(self, found: Description, node: LocalNode) -> None:
        node.process = _parents()[node.node % _SEEDS].fork(node.config, node.log)
        found.save()


class _Parent:
    """The process that forks nodes; it ends with the process of the tests, and its nodes outlive it."""

    def __init__(self) -> None:
        self._calls, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._calls.settimeout(_START_SECONDS)
        with theirs:
            self._command = (sys.executable, "-P", "-m", __name__, str(theirs.fileno()))
            self._process = subprocess.Popen(
                self._command, pass_fds=[theirs.fileno()], start_new_session=True, stdin=subprocess.DEVNULL
            )
        atexit.register(self._end)

    def fork(self, config: Path, log: Path) -> OwnProcess:
        asked = {"config": str(config), "log": str(log), "environ": dict(os.environ), "folder": os.getcwd()}
        try:
            self._calls.send(json.dumps(asked).encode())
            told = json.loads(self._calls.recv(_MOST_BYTES))
        except BaseException:
            self._calls.close()  # a late answer is not that of the next request
            raise
        return OwnProcess.from_plain({**told, "command": self._command})

    def _end(self) -> None:
        self._calls.close()
        self._process.wait(_START_SECONDS)


@functools.cache
def _parents() -> list[_Parent]:
    """They import at the same time."""
    return [_Parent() for _ in range(_SEEDS)]


def _serve(calls: socket.socket) -> dict[str, Any] | None:
    """Fork a node for each request; gives the request in the node, and None in the parent once it may end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets nodes that have ended
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    while request := calls.recv(_MOST_BYTES):
        assert len(os.listdir("/proc/self/task")) == 1, "only the thread that forks would be in a node"
        if (pid := os.fork()) == 0:
            asked: dict[str, Any] = json.loads(request)
            return asked
        stat = Path(f"/proc/{pid}/stat").read_text()
        started = int(stat.rpartition(")")[2].split()[_STARTED_FIELD])
        try:
            calls.send(json.dumps({"pid": pid, "boot": boot, "started": started}).encode())
        except OSError:
            os.kill(pid, signal.SIGKILL)  # the process of the tests is gone, or waits no more
            break
    return None


def _become(asked: dict[str, Any]) -> Sequence[str]:
    """Make this process what it were, had it been started by `OwnProcess.spawn`; its arguments."""
    os.setsid()
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(asked["environ"])
    os.chdir(asked["folder"])
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    return ("--config", asked["config"])


def main() -> int:
    """Import all, then fork; in a node, run it."""
    from strandline.node import process  # here: the process of the tests asks for nodes, and is none
    from strandline.node.kafka.wire.apis import APIS
    from strandline.node.kafka.wire.codec import prepare

    for api in APIS.values():
        for version in range(api.first, api.last + 1):
            prepare(api.key, version)  # a node imports them when a client needs them
    with socket.socket(fileno=int(sys.argv[1])) as calls:
        asked = _serve(calls)
    return 0 if asked is None else process.main(_become(asked))


if __name__ == "__main__":
    sys.exit(main())
