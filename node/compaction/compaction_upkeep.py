"""Compaction on one node: its replicas' local logs are kept, filled and cleaned, by one job at a time.

A round is long, so it goes step by step, and what is due for other logs comes between its steps. The task
rests between them, by its pace. Only while the object store lets a job wait there is a second one: of a round
of another log, which needs no store.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Iterator, Mapping
from typing import Final, NamedTuple

from strandline.node.compaction.cleaning_round import CleaningRound, RoundLimits
from strandline.node.compaction.compaction_measures import CompactionMeasures
from strandline.node.compaction.context import CompactionContext, Replica, configs_of
from strandline.node.compaction.due import newest_cleanable
from strandline.node.compaction.log_filling import LogFilling
from strandline.node.compaction.log_problems import Work
from strandline.node.compaction.log_sweep import LogSweep
from strandline.node.compaction.log_upkeep import LogUpkeep
from strandline.node.compaction.pace import Pace
from strandline.node.compaction.publisher import CompactionPublisher
from strandline.node.compaction.replica_log import ReplicaLog
from strandline.node.runtime.rounds import next_round
from strandline.node.runtime.slices import in_slices, look_seconds
from strandline.statemachine.controller.settings import Configs

LOOK_SECONDS: Final = 1.0
STORE_SECONDS: Final = 5.0
"""A job that needs the object store is waited for as long; then rounds go on beside it, on other logs."""
AGAIN_SECONDS: Final = 5.0
"""After a step that failed in a way that was not foreseen."""

log = logging.getLogger(__name__)


class UnderWay(NamedTuple):
    """Work on one local log that has begun and not ended."""

    topic: str
    partition: int
    work: str
    """As of `Work`, or "publish"."""
    seconds: float


class CompactionUpkeep:
    """One per node. Everything belongs on the context's loop."""

    def __init__(self, context: CompactionContext) -> None:
        self.measures = CompactionMeasures()
        self.publisher = CompactionPublisher(context, lambda: self.logs, self.measures)
        self._context = context
        self._config = context.config.compaction
        self._kept: dict[int, LogUpkeep] = {}
        self._round: CleaningRound | None = None
        self._storing: asyncio.Task[bool] | None = None
        """Fills a log, and publishes: what needs the object store."""
        self._log_filling = LogFilling(context, self.measures)
        self._filling: ReplicaLog | None = None
        self._begun: dict[Work, tuple[ReplicaLog, float]] = {}
        """The log that is worked on, and since when by the loop's clock; one at a time of each kind."""
        self._publishing_since = 0.0
        self._pace = Pace(context.compactor.measures)
        self._rounds = itertools.count(1)
        self._makers = itertools.count(1)
        self._sweep = LogSweep(context)
        self._task: asyncio.Task[None] | None = None

    @property
    def logs(self) -> Mapping[int, ReplicaLog]:
        """The local logs of the compacted replicas here, by group id."""
        return {group: kept.log for group, kept in self._kept.items()}

    def log_of(self, group: int) -> ReplicaLog | None:
        """The local log of one replica; None if its topic is not compacted, or not known to be yet."""
        kept = self._kept.get(group)
        return None if kept is None else kept.log

    def due(self, group: int) -> bool:
        """Whether the log of one replica is to be filled or cleaned now, by the topic's settings."""
        kept = self._kept.get(group)
        if kept is None:
            return False
        now = self._context.loop.time()
        fills = self._fill_age(kept, now) is not None
        return fills or kept.urgency(now, self._context.wall_ms()) is not None

    def under_way(self) -> list[UnderWay]:
        """The work under way, for as long as it is."""
        now = self._context.loop.time()
        begun = {kind.value: (log, now - since) for kind, (log, since) in self._begun.items()}
        if (published := self.publisher.working_on) is not None:
            begun["publish"] = published, now - self._publishing_since
        return [
            UnderWay(one.replica.topic, one.replica.number, work, seconds)
            for work, (one, seconds) in begun.items()
        ]

    def states(self) -> Mapping[str, int]:
        """The number of logs that are open, not open, and open but not cleaned any further."""
        states = {"open": 0, "closed": 0, "stuck": 0}
        for kept in self._kept.values():
            open_log = kept.log.log is not None
            states["stuck" if open_log and kept.log.problems.stuck else "open" if open_log else "closed"] += 1
        return states

    def start(self) -> None:
        """Begin; replicas may come and go from now on."""
        self._task = self._context.loop.create_task(self.run())

    async def close(self) -> None:
        """End the work in progress. The next start finds each log as of its last change."""
        tasks = [task for task in (self._task, self._storing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for kept in self._kept.values():
            kept.log.close()

    async def run(self) -> None:
        """Look every second, and work, for as long as the node lives."""
        loop, worked = self._context.loop, False
        while True:
            await next_round(0 if worked else look_seconds(LOOK_SECONDS, len(self._kept)))
            began = loop.time()
            try:
                worked = await self.step()
            except Exception as error:
                self._round = None
                message = "compaction: a step failed in a way that was not foreseen"
                loop.call_exception_handler({"message": message, "exception": error})
                await asyncio.sleep(AGAIN_SECONDS)
                worked = False
            if worked:
                ended = loop.time()
                self.measures.step_seconds.add(ended - began)
                await asyncio.sleep(self._pace.rest(began, ended))
            elif self._storing is not None:
                self._pace.stalled()
            else:
                self._pace.idle()

    async def step(self) -> bool:
        """Look, then do what is due: an ingest, an object to publish, a step of a round; whether any was."""
        await self.look()
        stored = await self._ask_store()
        if self._round is not None and self._with_store(self._round.replica_log):
            # Its files must not go under the publication, and the other logs need not wait for that.
            self._round.break_off()
            self._round = None
        if self._round is None:
            self._round = self._next_round()
        if self._round is None:
            return stored
        foreseen = await self._guarded(self._round.replica_log, Work.CLEAN, self._round.step())
        if self._round.ended:
            self._round_ended(self._round)
        if self._round.ended or not foreseen:
            self._had_its_turn(self._round.replica_log)
            self._round = None
        return True

    async def _ask_store(self) -> bool:
        """Fill one log and publish one object, if that is due; whether any of it was done.

        A store that hangs is left waiting after STORE_SECONDS, and looked at with each further step.
        """
        if not self._kept:
            return await self.publisher.step()
        if self._storing is None:
            self._storing = self._context.loop.create_task(self._fill_and_publish())
            await asyncio.wait([self._storing], timeout=STORE_SECONDS)
        if not self._storing.done():
            return False
        done, self._storing = self._storing, None
        return done.result()

    async def _fill_and_publish(self) -> bool:
        filled = await self._ingest_one()
        self._publishing_since = self._context.loop.time()
        return await self.publisher.step() or filled

    def _with_store(self, owner: ReplicaLog) -> bool:
        """Whether a job with the object store is under way for a log: no other may change it."""
        return owner is self._filling or owner is self.publisher.working_on

    async def _guarded(self, owner: ReplicaLog, kind: Work, work: Awaitable[None]) -> bool:
        """Work on one log; if it fails in a way that was not foreseen, which is False, the others go on."""
        self._begun[kind] = owner, self._context.loop.time()
        try:
            await work
        except Exception as error:
            message = f"compaction of {owner} failed in a way that was not foreseen"
            owner.problems.failed(kind, f"{message}: {error!r}")
            self._context.loop.call_exception_handler({"message": message, "exception": error})
            return False
        finally:
            del self._begun[kind]
        return True

    # Looking.

    async def look(self) -> None:
        """Take up the logs of replicas that came, remove those of replicas that went, and care for all."""
        context = self._context
        now, now_ms = context.loop.time(), context.wall_ms()
        kept: dict[int, LogUpkeep] = {}
        by_topic: dict[bytes, Configs | None] = {}
        async for replica in in_slices(context.partitions):
            topic = replica.topic_id
            if topic not in by_topic:
                by_topic[topic] = configs_of(context, topic)
            configs = by_topic[topic]
            if configs is None:
                continue
            one = self._kept.get(replica.group.id)
            if one is None or one.log.replica is not replica:
                one = self._taken_up(replica, configs)
            one.configs = configs
            kept[replica.group.id] = one
            one.note(now, now_ms, self._config.segment_bytes)
        gone = [one for group, one in self._kept.items() if kept.get(group) is not one]
        self._kept = kept
        for one in gone:
            await self._remove(one)
        busy = None if self._round is None else self._round.replica_log
        for one in [*kept.values()]:
            # While a round is under way only a reset may change its log.
            free = not self._with_store(one.log) and (one.log is not busy or not one.log.in_step())
            if one.log.wants_care and free:
                await self._guarded(one.log, Work.KEEP, one.log.care())
        if self._sweep.due():
            await self._sweep.run(
                {(each.log.replica.topic_id, each.log.replica.number) for each in kept.values()}
            )

    def _taken_up(self, replica: Replica, configs: Configs) -> LogUpkeep:
        made = ReplicaLog(self._context, replica, self.measures, self._makers)
        return LogUpkeep(made, configs, self._config.ingest_seconds)

    async def _remove(self, one: LogUpkeep) -> None:
        """The replica left this node, or its topic is not compacted any more."""
        try:
            await one.log.remove()
        except OSError as error:
            log.warning("the local log of %s, which is not needed any more, stays: %s", one.log, error)
            self._sweep.later()

    # Filling.

    async def _ingest_one(self) -> bool:
        """Ingest for the log that has waited for longest, of those that are due."""
        now = self._context.loop.time()
        due: list[tuple[float, LogUpkeep]] = []
        for one in self._idle(Work.FILL):
            age = self._fill_age(one, now)
            if age is not None:
                due.append((age, one))
            elif one.waiting is None:
                one.log.problems.worked(Work.FILL)
        if not due:
            return False
        one = max(due, key=lambda each: each[0])[1]
        self._filling = one.log
        try:
            await self._guarded(one.log, Work.FILL, self._log_filling.fill(one.log))
        finally:
            self._filling = None
        return True

    def _fill_age(self, one: LogUpkeep, now: float) -> float | None:
        """For how many times `ingest_seconds` a log has waited, if an ingest is due; None if none is."""
        if one.waiting is None:
            return None
        age = one.seen.age(one.waiting.first_offset, now) / self._config.ingest_seconds
        return age if age >= 1 or one.waiting.bytes >= self._config.ingest_bytes else None

    def _idle(self, work: Work) -> Iterator[LogUpkeep]:
        """The logs that are open, not being worked on, and for which this work may be tried."""
        busy = None if self._round is None else self._round.replica_log
        for one in self._kept.values():
            free = one.log is not busy and not self._with_store(one.log)
            if free and not one.log.problems.waits(work) and one.log.in_step():
                yield one

    # Cleaning.

    def _next_round(self) -> CleaningRound | None:
        """A round of the log that is due the most."""
        now, now_ms = self._context.loop.time(), self._context.wall_ms()
        due: list[tuple[float, LogUpkeep]] = []
        for one in self._idle(Work.CLEAN):
            urgency = one.urgency(now, now_ms)
            if urgency is not None:
                due.append((urgency, one))
            else:
                # What failed was done since, or has not to be done any more.
                one.log.problems.worked(Work.CLEAN)
                if one.waiting is None:
                    one.log.problems.worked(Work.KEEP)
        if not due:
            return None
        one = max(due, key=lambda each: each[0])[1]
        assert one.log.log is not None, "only open logs are cleaned"
        one.note_begun(one.log.log.manifest)
        limits = RoundLimits(
            self._config.map_bytes, self._config.segment_bytes, self._context.config.level_one.block_bytes
        )
        return CleaningRound(
            next(self._rounds),
            one.log,
            self._context.compactor,
            self.measures,
            limits,
            newest_cleanable(one.configs, now_ms),
            now_ms,
            self._pace,
        )

    def _had_its_turn(self, owner: ReplicaLog) -> None:
        one = self._kept.get(owner.replica.group.id)
        if one is not None and one.log is owner:
            one.note_ended()

    def _round_ended(self, ended: CleaningRound) -> None:
        owner = ended.replica_log
        if not ended.failed:
            owner.problems.worked(Work.CLEAN)
            owner.problems.note_stuck(ended.problem)
        one = self._kept.get(owner.replica.group.id)
        if ended.futile and one is not None and owner.log is not None:
            one.note_futile(owner.log.manifest, ended.young_ms)
