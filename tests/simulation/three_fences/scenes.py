"""The three lines of the exactly-once scene: who comes late, and by which of the three fences it is kept out.

Each scene is written as the zombie sees it: it does what its client would do, knows nothing of its successor,
and stops only where it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tests.histories.anomalies import Anomaly, anomalies
from tests.histories.history import Read
from tests.simulation.report import Finding
from tests.simulation.three_fences.fences import EPOCH, GENERATION, SEQUENCE, without
from tests.simulation.three_fences.stage import Stage, stage
from tests.simulation.three_fences.task import Task


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is there in the end: in the output's partitions, in the group's offsets, and in the folder."""

    log: list[list[str]]
    visible: list[list[str]]
    offsets: dict[int, int]
    refused: list[str]
    """What the zombie was refused with, step by step."""
    anomalies: list[Anomaly]
    findings: list[Finding]
    """What the simulation's own rules say: they hold at every moment of every run."""


def retry(on: Stage) -> list[str]:
    """Two acknowledgements are lost, one on the way and one with the leader; both batches are sent again."""
    inputs = [on.feed(0, "in-0"), on.feed(1, "in-1")]
    task = on.task("writer", "writer")
    on.do(task, task.start())
    task.begin(inputs)
    for partition, value in enumerate(("first", "second")):
        on.do(task, task.send(on.output, partition, value))
    for partition, value in enumerate(("third", "fourth")):
        leader, before = on.leader(on.output, partition), on.end_offset(on.output, partition)
        there, here = leader.sim.id, task.sim.id
        on.world.network.cut(there, here, both=False)
        sent = on.begin(task, task.send(on.output, partition, value))
        on.until(f"{value} is in the log", partial(on.is_longer, on.output, partition, before))
        if value == "third":
            on.world.network.reset(there, here)
        else:
            on.cluster.crash(there, "kill")
        on.world.network.heal(there, here)
        sent()
    on.do(task, task.commit_offsets({0: 1, 1: 1}))
    on.do(task, task.end())
    return task.refused


def restart(on: Stage) -> list[str]:
    """A task stops in the midst of its transaction; another process starts with the same transactional id,
    does its work and goes further; then the first one goes on where it was."""
    inputs = [on.feed(0, "in-0"), on.feed(1, "in-1")]
    zombie = on.task("zombie", "copier")
    on.do(zombie, zombie.start())
    zombie.begin(inputs)
    on.do(zombie, zombie.send(on.output, 0, "in-0 by the zombie"))

    successor = on.task("successor", "copier")
    on.do(successor, successor.start())
    _do_the_work(on, successor, inputs)

    on.do(zombie, zombie.tried(zombie.send(on.output, 1, "in-1 by the zombie")))
    on.do(zombie, zombie.tried(zombie.commit_offsets({0: 1, 1: 1})))
    on.do(zombie, zombie.end())
    on.do(zombie, zombie.tried(zombie.life.initialize()))  # with the epoch it has: KIP-360
    return zombie.refused


def rebalance(on: Stage) -> list[str]:
    """A task with a transactional id of its own stops before it commits; the group gives its partitions to
    another, which does its work and goes further; then the first one commits what it had read."""
    inputs = [on.feed(0, "in-0"), on.feed(1, "in-1")]
    zombie = on.task("zombie", "task-1")
    on.do(zombie, zombie.start())
    on.do(zombie, zombie.join())
    zombie.begin(inputs)
    for read in inputs:
        on.do(zombie, zombie.send(on.output, read.place.partition, f"{read.value} by the zombie"))

    successor = on.task("successor", "task-2")
    on.do(successor, successor.start())
    on.do(successor, successor.join())
    assert on.do(successor, _positions(successor)) == {0: 0, 1: 0}
    _do_the_work(on, successor, inputs)

    committed = on.do(zombie, zombie.tried(zombie.commit_offsets({0: 1, 1: 1})))
    on.do(zombie, zombie.end(commit=committed))
    return zombie.refused


def outvoted(on: Stage) -> list[str]:
    """As `rebalance`, but the first one stays a member: its heartbeats go on while its work stands still, and
    the next generation leaves it one of its two partitions, whose input it does again if it is refused."""
    inputs = [on.feed(0, "in-0"), on.feed(1, "in-1")]
    zombie = on.task("zombie", "task-1")
    on.do(zombie, zombie.start())
    on.do(zombie, zombie.join())
    zombie.begin(inputs)
    for read in inputs:
        on.do(zombie, zombie.send(on.output, read.place.partition, f"{read.value} by the zombie"))

    successor = on.task("successor", "task-2")
    on.do(successor, successor.start())
    joined, beating = on.begin(successor, successor.join(1)), on.begin(zombie, zombie.beat())
    joined()
    zombie.beats = False
    beating()
    assert successor.member is not None
    (lost,) = successor.member.partitions
    successor.begin([inputs[lost]])
    on.do(successor, successor.send(on.output, lost, f"in-{lost} by the successor"))
    on.do(successor, successor.commit_offsets({lost: 1}))
    on.do(successor, successor.end())

    committed = on.do(zombie, zombie.tried(zombie.commit_offsets({0: 1, 1: 1})))
    on.do(zombie, zombie.end(commit=committed))
    if not committed:
        kept = 1 - lost
        zombie.begin([inputs[kept]])
        on.do(zombie, zombie.send(on.output, kept, f"in-{kept} again"))
        on.do(zombie, zombie.commit_offsets({kept: 1}))
        on.do(zombie, zombie.end())
    return zombie.refused


def _do_the_work(on: Stage, successor: Task, inputs: Sequence[Read]) -> None:
    """Make of both inputs what the zombie was about to, commit, and go further."""
    successor.begin(inputs)
    for read in inputs:
        partition = read.place.partition
        on.do(successor, successor.send(on.output, partition, f"{read.value} by the successor"))
    on.do(successor, successor.commit_offsets({0: 1, 1: 1}))
    on.do(successor, successor.end())
    successor.begin([on.feed(0, "in-2")])
    on.do(successor, successor.send(on.output, 0, "in-2 by the successor"))
    on.do(successor, successor.commit_offsets({0: 3}))
    on.do(successor, successor.end())


async def _positions(task: Task) -> dict[int, int] | None:
    assert task.member is not None
    return await task.member.offsets()


SCENES: Final[dict[str, Callable[[Stage], list[str]]]] = {
    "retry": retry,
    "restart": restart,
    "rebalance": rebalance,
}
"""One for each fence."""
OWN_FENCE: Final = {"retry": SEQUENCE, "restart": EPOCH, "rebalance": GENERATION}
"""The one that keeps each scene's latecomer out."""


def play(
    scene: str | Callable[[Stage], list[str]],
    missing: str | None,
    folder: Path | None = None,
    *,
    version: int = 2,
    protocol: str = "classic",
) -> Outcome:
    """Play a scene with a fence missing, or with all three; what is stored goes into the folder, if any."""
    with without(missing), stage(version, protocol) as on:
        refused = (SCENES[scene] if isinstance(scene, str) else scene)(on)
        on.settle()
        if folder is not None:
            on.publish(folder)
        return Outcome(
            on.log(on.output),
            on.visible(on.output),
            on.offsets(),
            refused,
            anomalies(on.history()),
            list(on.cluster.ledger.findings),
        )
