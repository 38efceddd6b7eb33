"""A rolling restart of a local cluster: no client loses a leader without another, and no group its majority.

What is to be restarted lies in a file of the cluster's folder, with the process that each node had then. So
a restart that was cut off goes on where it was: a node is done when another healthy process is in its place.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.leader_drain import Drained, drain_leaders, undrain
from strandline.cluster.local import LocalCluster
from strandline.cluster.local_files import check_whole
from strandline.cluster.node_file import check_file
from strandline.cluster.own_process import OwnProcess
from strandline.cluster.well import SETTLING_SECONDS, lacks, wait_well

PLAN: Final = "rolling-restart.json"
DRAINED_SECONDS: Final = 120.0
"""Time without leaderships, from the drain to the node's end: its stop takes 30 s at most."""
OLD_SECONDS: Final = 3600.0
"""A call is repeated soon after it was cut off. Later it may be meant as another restart, of all nodes."""
_POLL_SECONDS: Final = 0.3


@dataclass(frozen=True, slots=True)
class Restarted:
    """A node that was restarted; `handed_over` is None where its release does not tell.

    `needed` groups have no majority without it, and were away meanwhile.
    """

    node: int
    pid: int
    handed_over: int | None
    needed: int
    seconds: float


def restart_rolling(
    local: LocalCluster,
    nodes: Sequence[int],
    *,
    again: bool,
    resume: bool,
    timeout: float,
    progress: Callable[[str], Any],
) -> list[Restarted]:
    """Restart these nodes, or all, one after the other; those that this call restarted.

    Each is drained of its leaderships, stopped and started; the next one follows when all nodes are healthy
    and all replicas in step. Goes on with a restart that was cut off, unless `again`; with one that began
    more than OLD_SECONDS ago only if told to `resume`. CommandFailed, with nothing stopped, when the cluster
    is not well at first, or it is not told what to do about an old restart; and with the rest left alone when
    the cluster is not well within `timeout` seconds after a node's start, or the node does not come back.
    """
    check_whole(local.folder)
    for each in local.chosen(*nodes):
        check_file(each.config, os.environ)
    with _plan(local, nodes, progress, again=again, resume=resume) as plan:
        done = _settle_earlier(local, plan, timeout, progress)
        for number, (node, before) in enumerate(plan.items(), 1):
            (each,) = local.chosen(node)
            if each.process == before:
                which = f"{number} of {len(plan)}"
                done.append(_restart(local, node, timeout, partial(_tell, progress, which)))
    return done


def _settle_earlier(
    local: LocalCluster,
    plan: Mapping[int, OwnProcess | None],
    timeout: float,
    progress: Callable[[str], Any],
) -> list[Restarted]:
    """Start what an earlier call was cut off between stop and start, and wait for what it had started."""
    began = time.monotonic()
    stopped = [node for node in plan if local.chosen(node)[0].pid is None]
    if stopped:
        told = ", ".join(map(str, stopped))
        progress(f"node {told}: starting it, as it was stopped when the restart was cut off")
        # All before a wait for one: none is well without the others.
        local.start(*stopped, timeout=0)
        return [_back(local, node, None, began, timeout, progress) for node in stopped]
    if any(local.chosen(node)[0].process != before for node, before in plan.items()):
        lacking = wait_well(_addresses(local), timeout, progress)
        if lacking is not None:
            raise CommandFailed(
                f"the cluster is not well since a rolling restart was cut off: {lacking}",
                "mend that, then repeat the command: it goes on with the nodes that are left",
            )
    return []


def _restart(local: LocalCluster, node: int, timeout: float, say: Callable[[str], Any]) -> Restarted:
    began = time.monotonic()
    addresses = _addresses(local)
    drained = drain_leaders(addresses, node, DRAINED_SECONDS, timeout, say)
    # An earlier node may not be well yet, or another may have died meanwhile; then this one is needed.
    if (lacking := wait_well(addresses, SETTLING_SECONDS, say)) is not None:
        if drained is not None:
            undrain(addresses, node)
        raise CommandFailed(
            f"node {node} was not stopped: {lacking}",
            "mend that, then repeat the command: it goes on with the nodes that are left",
        )
    say(f"node {node}: stopping it")
    try:
        local.stop(node)
    except CommandFailed as failed:
        local.start(node, timeout=0)
        _wait_back(local, node, timeout, say)
        raise CommandFailed(
            f"{failed.cause}; it is back, and the other nodes were left alone",
            f"{failed.cure}, then repeat the command, which goes on from here",
        ) from None
    local.start(node, timeout=0)
    return _back(local, node, drained, began, timeout, say)


def _back(
    local: LocalCluster,
    node: int,
    drained: Drained | None,
    began: float,
    timeout: float,
    say: Callable[[str], Any],
) -> Restarted:
    _wait_back(local, node, timeout, say)
    (now,) = local.chosen(node)
    handed_over, needed = (None, 0) if drained is None else (drained.handed_over, drained.needed)
    return Restarted(node, now.pid or 0, handed_over, needed, round(time.monotonic() - began, 2))


def _tell(progress: Callable[[str], Any], which: str, line: str) -> None:
    progress(f"{which}: {line}")


def _wait_back(local: LocalCluster, node: int, timeout: float, say: Callable[[str], Any]) -> None:
    """Until the node is back and nothing is lacking; CommandFailed when it dies, or the time is over."""
    left = "the other nodes were left alone: mend it, then repeat the command, which goes on from here"
    deadline = time.monotonic() + timeout
    while (lacking := lacks(_addresses(local))) is not None:
        (each,) = local.chosen(node)
        if each.pid is None:
            raise CommandFailed(
                f"node {node} did not come back: {each.last_words() or 'it left no word'}",
                f"the cause is in {each.log}; {left}",
            )
        if time.monotonic() >= deadline:
            raise CommandFailed(
                f"{timeout:g} s after the start of node {node} the cluster is not well: {lacking}",
                f"see {each.log}; {left}",
            )
        say(f"node {node}: waiting until all is well: {lacking}")
        time.sleep(_POLL_SECONDS)


def _addresses(local: LocalCluster) -> list[str]:
    return [each.admin for each in local.description.nodes.values()]


@contextmanager
def _plan(
    local: LocalCluster, nodes: Sequence[int], progress: Callable[[str], Any], *, again: bool, resume: bool
) -> Iterator[dict[int, OwnProcess | None]]:
    """The nodes to restart, each with the process that is to go; kept until all are done.

    A new one is written only when the cluster is well. Nodes that were removed since are left out.
    """
    path = local.folder / PLAN
    with _locked(path) as file:
        there = {} if again else _read(file)
        if there and nodes and set(nodes) != set(there):
            raise CommandFailed(
                f"a rolling restart of nodes {', '.join(map(str, there))} was cut off",
                "leave out the nodes to go on with it, or begin with the first once more: --again",
                MISUSED,
            )
        _check_age(path, there, resume)
        if not there:
            lacking = wait_well(_addresses(local), SETTLING_SECONDS, progress)
            if lacking is not None:
                path.unlink()
                raise CommandFailed(
                    f"the cluster is not well, and no node was stopped: {lacking}",
                    "mend that first, or wait for it: strandline cluster status --wait 60",
                )
            there = {each.node: each.process for each in local.chosen(*nodes)}
            _write(file, there)
        found = local.description.nodes
        yield {node: process for node, process in there.items() if node in found}
        path.unlink(missing_ok=True)


def _check_age(path: Path, there: Mapping[int, OwnProcess | None], resume: bool) -> None:
    """Refuse to go on with an old plan unless told to, and to resume where there is none."""
    if resume and not there:
        path.unlink()
        raise CommandFailed("no rolling restart was cut off", "begin one: leave out --resume", MISUSED)
    hours = (time.time() - path.stat().st_mtime) / 3600
    if there and not resume and hours * 3600 > OLD_SECONDS:
        ago = f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} days"
        raise CommandFailed(
            f"a rolling restart of nodes {', '.join(map(str, there))} began {ago} ago and was cut off",
            "go on with the nodes that it left: --resume; or begin with the first once more: --again",
            MISUSED,
        )


@contextmanager
def _locked(path: Path) -> Iterator[IO[str]]:
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # One that has just ended removed the file; a lock on the removed one excludes no process.
            alone = path.exists() and os.fstat(file.fileno()).st_ino == path.stat().st_ino
        except BlockingIOError:
            alone = False
        if not alone:
            raise CommandFailed(
                "another rolling restart of this cluster is under way", "wait for it, or end it first"
            )
        yield file


def _read(file: IO[str]) -> dict[int, OwnProcess | None]:
    """Nothing where it is empty or torn: then no node was stopped yet."""
    try:
        return {
            int(row["node"]): None if row["process"] is None else OwnProcess.from_plain(row["process"])
            for row in json.load(file)["nodes"]
        }
    except (ValueError, LookupError, TypeError):
        return {}


def _write(file: IO[str], plan: dict[int, OwnProcess | None]) -> None:
    rows = [
        {"node": node, "process": None if process is None else process.to_plain()}
        for node, process in plan.items()
    ]
    file.seek(0)
    file.truncate()
    json.dump({"nodes": rows}, file)
    file.flush()
    os.fsync(file.fileno())
