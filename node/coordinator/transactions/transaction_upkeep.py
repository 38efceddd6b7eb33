"""The background work of a transaction coordinator's leader, from its election to its end.

It completes what was decided: it sends the markers of every prepared transaction that the state shows,
including those that an earlier leader prepared. It aborts transactions that exceed their producer's timeout,
and forgets transactional ids that are not used. All of it follows from the applied state, so a new leader
needs no message from the previous one, and each step may be repeated without harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from strandline.node.controller.cluster_clock import FAR_MS
from strandline.node.coordinator.context import CoordinatorContext
from strandline.node.coordinator.replica import CoordinatorReplica
from strandline.node.coordinator.transactions.markers import Markers, PreparedEnd, prepared_end
from strandline.node.refusal import Refusal
from strandline.node.runtime.gather import gather_bounded
from strandline.statemachine.transactions.transaction_commands import Abort, Complete, ExpireIds, Prepared
from strandline.statemachine.transactions.transactions import TransactionsMachine

log = logging.getLogger(__name__)

CHECK_SECONDS: Final = 1.0
"""Interval of the search for transactions that exceed their timeout (Kafka: 10 s,
transaction.abort.timed.out.transaction.cleanup.interval.ms)."""
EXPIRE_SECONDS: Final = 600.0
"""Interval of the search for transactional ids that are not used."""
MAX_IDS: Final = 32_768
"""Beyond this number the ids that are at rest for longest are forgotten sooner. Sinks that make an id for
each checkpoint leave several hundred thousand in a week, and a snapshot of all ids is read in one go when
a node starts: 0.1 s of CPU for this number."""
LEAST_EXPIRATION_MS: Final = 3600 * 1000
"""No id is forgotten sooner for that, unless the configuration says so: a producer that pauses between two
transactions, and one that is started again, find theirs."""
RETRY_SECONDS: Final = 0.1


class TransactionUpkeep:
    """Works while the replica leads. Belongs to the context's loop."""

    def __init__(
        self,
        replica: CoordinatorReplica[TransactionsMachine],
        context: CoordinatorContext,
        on_completing: Callable[[str], None],
    ) -> None:
        """`on_completing` is called with a transactional id as it gets into `completing`."""
        self.completing: dict[str, None] = {}
        """Transactional ids whose Complete is in the log and not applied yet, or gets there before other code
        runs. What is put into the log from then on is applied behind it."""
        self._replica = replica
        self._context = context
        self._on_completing = on_completing
        self._markers: Markers | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._delivering: dict[tuple[str, int], None] = {}
        """Transactional ids and numbers of the transactions whose markers are being sent."""
        self._open_since: dict[tuple[str, int], float] = {}
        """When this leadership saw each open transaction first, by the loop's time."""
        replica.watch(self._changed)
        replica.follow(self._started, self._stopped)

    def _started(self, term: int) -> None:
        self._markers = Markers(self._context, term)
        self._spawn(self._every(CHECK_SECONDS, self._end_overdue))
        self._spawn(self._every(EXPIRE_SECONDS, self._expire_ids))
        self._changed()

    def _stopped(self, reason: str) -> None:
        if self._markers is not None:
            self._markers.close()
            self._markers = None
        for task in self._tasks:
            task.cancel()
        self._delivering.clear()
        self._open_since.clear()

    def _spawn(self, work: Any) -> None:
        task = self._context.loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def _changed(self) -> None:
        """An entry was applied: send the markers of prepared transactions that are not being sent yet.

        Called after every apply, and thousands may wait for one partition that is down. So it looks no
        further back than to the last one it has seen: a leader's state is never replaced.
        """
        if self._markers is None:
            return
        new: list[tuple[tuple[str, int], PreparedEnd]] = []
        for one in self._replica.machine.newest_prepared():
            key = (one.transactional_id, one.number)
            if key in self._delivering:
                break
            new.append((key, prepared_end(one)))
        for key, what in reversed(new):
            self._delivering[key] = None
            self._spawn(self._carry_out(self._markers, key[0], what))

    async def _carry_out(self, markers: Markers, transactional_id: str, what: PreparedEnd) -> None:
        """Deliver the markers of a prepared transaction, and say so in the log."""
        complete = Complete(transactional_id, what.number)
        delivered = told = False
        while True:
            try:
                if not delivered:
                    await markers.deliver(what)
                # They stay where they are. To send them again because the log is full would fill others too.
                delivered = True
                await self._context.decisions.passed()
                self.completing[transactional_id] = None
                # `execute` puts the command into the log before anything that this wakes can run.
                self._on_completing(transactional_id)
                if not isinstance(await self._replica.execute(complete), Refusal):
                    break
            except Exception:
                if not told:
                    log.exception("transaction %d of %r is not completed yet", what.number, transactional_id)
                told = True
            finally:
                self.completing.pop(transactional_id, None)
            await asyncio.sleep(RETRY_SECONDS)
        self._delivering.pop((transactional_id, what.number), None)

    async def _every(self, seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except Exception:
                log.exception(
                    "%s-%d: the coordinator's background work failed; it will be retried",
                    self._replica.place.topic,
                    self._replica.number,
                )

    async def _end_overdue(self) -> None:
        """Abort transactions that exceed their producer's timeout; the next check repeats what fails."""

        async def abort(one: tuple[str, int]) -> None:
            await self._context.decisions.passed()
            result = await self._replica.execute(Abort(*one))
            if isinstance(result, Prepared):
                log.info("aborted transaction %d of %r: its timeout is over", one[1], one[0])

        await gather_bounded(self._overdue(), abort)

    def _overdue(self) -> list[tuple[str, int]]:
        """Ids and numbers of transactions open for too long, by the clock or since this node saw them.

        The clock may be behind the former leader's, and time in the state stands still until it has caught
        up.
        """
        now, wall = self._context.loop.time(), self._context.wall_ms()
        seen, overdue = self._open_since, []
        self._open_since = {}
        for one in self._replica.machine.ongoing:
            key = (one.transactional_id, one.number)
            since = self._open_since[key] = seen.get(key, now)
            if max(wall - one.started, (now - since) * 1000) >= one.timeout_ms:
                overdue.append(key)
        return overdue

    async def _expire_ids(self) -> None:
        if len(self._replica.machine.transactions) > MAX_IDS:
            # Coordinators that a node takes up together would look together, and this look takes a while.
            await asyncio.sleep(self._replica.number % 64)
        machine, now = self._replica.machine, self._context.agreed_ms()
        if now is None:
            return  # the nodes do not agree on the time
        expiration = int(self._context.config.transactions.id_expiration_seconds * 1000)
        since = machine.newest_since(MAX_IDS)
        if since is not None:
            # What was used in the millisecond of the last that stays, stays too.
            expiration = min(max(now - since + 1, LEAST_EXPIRATION_MS), expiration)
        if machine.expires(expiration, now) or machine.time > now + FAR_MS:
            await self._replica.execute(ExpireIds(expiration, now))
