"""The last schedule: a random order of what the others have, then quiet; all copies give one table."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from strandline.statemachine.controller.topic_config import CLEANUP_POLICY
from tests.simulation.whole.compaction.schedules import holes, transaction_holes
from tests.simulation.whole.compaction.schedules.nodes import Work
from tests.simulation.whole.compaction.schedules.plan import ALL
from tests.simulation.whole.compaction.schedules.play import Hole, Schedule
from tests.simulation.whole.compaction.schedules.stage import Stage

STEPS = 60
KEYS = 5
_WORKS: tuple[Work, ...] = ("ingest", "round", "publish", "report", "ingested", "filtered")
_PIDS = (7, 8)


class Anything:
    """One random order of steps, by its seed."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self._stage = stage
        self._rng = Random(f"schedule {seed}")
        self._open: set[int] = set()
        self._away: int | None = None
        self._out: int | None = None
        self._steps: list[Callable[[], None]] = [
            *[self._write] * 12, *[self._transact] * 6, *[self._pause] * 5, *[self._hold] * 6,
            *[self._let_go] * 6, *[self._come_and_go] * 4, *[self._lead] * 3, self._lose, self._leave_or_join,
            self._flip,
        ]  # fmt: skip

    def run(self) -> None:
        for _ in range(STEPS):
            self._rng.choice(self._steps)()
        stage = self._stage
        for work in _WORKS:
            stage.let(work)
        self._come_back()
        if self._out is not None:
            self._leave_or_join()
        for pid in sorted(self._open):
            stage.end(pid, commit=False)
        stage.configure(cleanup_policy="compact")

    def _batch(self) -> list[tuple[bytes, bytes | None]]:
        rng, stage = self._rng, self._stage
        return [
            (b"key %d" % rng.randrange(KEYS), None if rng.random() < 0.4 else b"%d" % stage.time_ms)
            for _ in range(rng.randint(1, 4))
        ]

    def _write(self) -> None:
        self._stage.put(*self._batch())

    def _transact(self) -> None:
        pid = self._rng.choice(_PIDS)
        if pid in self._open and self._rng.random() < 0.5:
            self._stage.end(pid, commit=self._rng.random() < 0.5)
            self._open.discard(pid)
        else:
            self._stage.put(*self._batch(), producer=pid)
            self._open.add(pid)

    def _pause(self) -> None:
        self._stage.pass_time(self._rng.choice((0.1, 0.4, 1.2)))

    def _hold(self) -> None:
        self._stage.hold(self._rng.choice(_WORKS), self._rng.choice(ALL))

    def _let_go(self) -> None:
        self._stage.let(self._rng.choice(_WORKS))

    def _up(self) -> list[int]:
        """The members that run."""
        return [node for node in self._stage.brokers if node != self._out]

    def _come_and_go(self) -> None:
        if self._away is not None:
            self._come_back()
        elif self._out is None:
            self._away = self._rng.choice(ALL)
            self._stage.down(self._away, self._rng.choice(("kill", "power")))
            if self._rng.random() < 0.2:
                self._stage.lose_log(self._away)

    def _come_back(self) -> None:
        if self._away is not None:
            self._stage.up(self._away)
            self._away = None

    def _lead(self) -> None:
        self._stage.lead(self._rng.choice(self._up()))

    def _lose(self) -> None:
        node = self._rng.choice(self._up())
        log = self._stage.log(node)
        if log is not None and log.readable() is not None:
            self._stage.watch.rots(node, f"{log.folder}/any")
            log.damaged("a set piece has damaged it")

    def _leave_or_join(self) -> None:
        """A member that is deaf to the partition's log is left out, or let in again."""
        stage = self._stage
        if self._out is not None:
            stage.deaf(self._out, is_so=False)
            stage.join(self._out)
            self._out = None
        elif self._away is None:
            self._out = self._rng.choice([node for node in ALL if node != stage.leader])
            stage.deaf(self._out)
            stage.leave(self._out)

    def _flip(self) -> None:
        """Compact the topic no more, or again."""
        stage = self._stage
        topic = stage.brokers[stage.leader].controller.machine.topic_by_id(stage.topic_id)
        assert topic is not None
        compacted = "compact" in CLEANUP_POLICY.of(topic.configs)
        stage.configure(cleanup_policy="delete" if compacted else "compact")


def _schedule(seed: int, *found: Hole) -> Schedule:
    def all_copies_give_one_table(stage: Stage) -> None:
        Anything(stage, seed).run()

    all_copies_give_one_table.__name__ += f"_seed_{seed}"
    return Schedule(21, all_copies_give_one_table, found)


SCHEDULES = (
    _schedule(
        0,
        Hole("anything, high watermark", "logs are filled up to the high watermark",
             transaction_holes.high_watermark, {"settled": "which is not committed"}),
        Hole("anything, unsynced", "a manifest counts before its folder is synced",
             lambda: (holes.unsynced(),), {"reports are durable": ""}),
    ),
    _schedule(
        1,
        Hole("anything, answered", "the minimum is over those that answered",
             lambda: (holes.answered(),), {"removal overtakes none": ""}),
        Hole("anything, own time", "a tombstone's own time begins its wait",
             lambda: (holes.own_time(),), {"clean is clean: C3": "value=None"}),
    ),
    _schedule(2),
)  # fmt: skip
