"""Tails: every few seconds one object with what was committed in the groups that this node leads.

A reader of the storage alone would otherwise see what the last checkpoint saw. After so many tails a node
publishes the states of all groups that it leads, and removes what that makes dispensable. A tail holds
nothing back: what its states name may be lifted to level one and deleted, and a reader that comes late looks
for the records again.

The node that leads the controller has all nodes look in step (`CUT`), so that what they publish is one state
of the cluster (tail_points.py). A node that is not asked looks by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from strandline.node.checkpoints.context import CheckpointContext
from strandline.node.checkpoints.publisher import CheckpointPublisher
from strandline.node.checkpoints.recorders import CheckpointRecorders
from strandline.node.checkpoints.tail_pruning import remove_tails
from strandline.node.checkpoints.tail_sections import PHASES, Part, TailSections, fill
from strandline.node.controller.periodic import PeriodicPart
from strandline.node.rpc import CallFailed
from strandline.snapshot.tail_document import TailDocument, parse_tail_name, tail_name

log = logging.getLogger(__name__)

DOCUMENT_BYTES: Final = 4 * 1024 * 1024
"""A tail with so much of states and entries takes no further section."""
STATES_EVERY: Final = 48
"""Tails between two rounds of states: two minutes of them, by default. A reader that begins reads up to twice
as many of each node."""
LOOKS: Final = 2
"""Looks in the time within which a record is to be published: it waits for one, and for its upload."""
DUE: Final = "tails.due"
CUT: Final = "tails.cut"
STORED: Final = len(PHASES)
"""The last step of a cut, after its phases: its tails are in the store."""
STEP_SECONDS: Final = 1.0
"""Longest time from one phase of a cut to the next; after that the node goes on by itself."""
TURN_SECONDS: Final = 0.5
"""Longest time that a cut waits for the end of a look of the node's own."""
OWN_LOOKS_AFTER: Final = 1.5
"""A node looks by itself where it has not been asked for so many looks."""


@dataclass(slots=True)
class TailMeasures:
    """Counters since the node started."""

    published: int = 0
    """Tails that are in the store."""
    published_bytes: int = 0
    states: int = 0
    """Sections that begin with a state."""
    put_at: float | None = None
    """The loop's time when all that was due was last in the store."""


@dataclass(slots=True)
class _Look:
    """One look, with what it publishes."""

    all_states: bool
    before: int
    """Tails since the last round of states when it began."""
    parts: list[Part] = field(default_factory=list)


class _Cut:
    """A look in steps, each when the node that leads the controller asks for it."""

    def __init__(self, token: int, loop: asyncio.AbstractEventLoop) -> None:
        self.token = token
        self.asked = [asyncio.Event() for _ in range(STORED)]
        self.answers: list[asyncio.Future[list[Any]]] = [loop.create_future() for _ in range(STORED + 1)]
        self.led: dict[int, int] = {}
        """Of the phase that is under way: by group, the term in which this node leads for sure."""
        self.over = False

    def answer(self, step: int, rows: Sequence[Any]) -> None:
        """Answer a step; nothing where the cut is over."""
        if not self.answers[step].done():
            self.answers[step].set_result([*rows])

    def end(self, reason: str) -> None:
        """Answer what has no answer yet, and ask for nothing more."""
        self.over = True
        for asked in self.asked:
            asked.set()
        for answer in self.answers:
            if not answer.done():
                answer.set_exception(CallFailed(reason, unknown=False))
            answer.exception()  # not every step is asked for


class TailPublishing(PeriodicPart):
    """Puts this node's tails, one after the other: one that is there has those before it there."""

    def __init__(
        self,
        context: CheckpointContext,
        recorders: CheckpointRecorders,
        publisher: CheckpointPublisher,
        *,
        loop: asyncio.AbstractEventLoop,
        pool: Executor | None,
    ) -> None:
        config = context.config
        self._enabled = bool(config.publish.seconds)
        seconds = config.publish.seconds / LOOKS
        super().__init__(seconds, "what was committed is not published; it is tried again", loop=loop)
        self.measures = TailMeasures()
        self._context = context
        self._recorders = recorders
        self._publisher = publisher
        self._pool = pool
        self._sections = TailSections(context, recorders, loop=loop)
        self._turn = asyncio.Lock()
        """Of the look that is under way."""
        self._cut: _Cut | None = None
        self._cutting: set[asyncio.Task[None]] = set()
        """Of the last cut, and of those before it whose tails are not stored yet."""
        self._cut_at: float | None = None
        self._uncut = False
        """Whether this node has published anything by itself since its last cut."""
        self._running = False
        self._started_ms: int | None = None
        self._made_ms = 0
        """The time in the name of the last tail: those of a process are in their order, however its clock
        goes."""
        self._names: list[str] = []
        """The tails since the last round of states, its own included."""
        context.calls.serve(DUE, self._serve_due)
        context.calls.serve(CUT, self._serve_cut)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of entries that no tail has yet."""
        return self._recorders.open_tails.used

    @property
    def age(self) -> float | None:
        """Seconds since all that was due was in the store; None where no tails are wanted, and at first."""
        at = self.measures.put_at
        return None if at is None else self._loop.time() - at

    def start(self) -> None:
        """See PeriodicPart; nothing where no tails are wanted."""
        if self._enabled:
            self._running = True
            super().start()

    def close(self) -> None:
        """See PeriodicPart."""
        super().close()
        self._running = False
        for task in self._cutting:
            task.cancel()

    async def finish(self, seconds: float) -> None:
        """Publish what is left, for up to this many seconds, before the node ends."""
        self.close()
        if self._task is not None:
            await asyncio.wait([self._task, *self._cutting])
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._publish()

    async def _look(self) -> None:
        rest = OWN_LOOKS_AFTER * self._seconds
        if self._cut_at is None or self._loop.time() - self._cut_at >= rest:
            await self._publish()

    async def _publish(self) -> None:
        if self._context.controller.machine.incarnation is None:
            return  # it has not applied the first entry of all
        async with self._turn:
            look = self._begin()
            try:
                for kinds in PHASES:
                    await self._sections.add_due(look.parts, kinds, all_states=look.all_states)
                self._uncut = self._uncut or bool(look.parts)
                await self._store(look)
            except BaseException:
                self._sections.begin_again(look.parts)
                raise
            await self._prune(look)

    def _begin(self) -> _Look:
        if self._started_ms is None:
            self._started_ms = self._context.wall_ms()
        all_states = len(self._names) >= STATES_EVERY
        if all_states:
            self._sections.begin_round()
        return _Look(all_states, len(self._names))

    async def _store(self, look: _Look) -> bool:
        """Put what a look has; whether the store has taken all of it."""
        next_one, whole = 0, True
        while next_one < len(look.parts):
            next_one, stored = await self._put(look.parts, next_one)
            whole = whole and stored
        self.measures.put_at = self._loop.time()
        return whole

    async def _prune(self, look: _Look) -> None:
        if look.all_states:
            assert self._started_ms is not None, "the look has begun"
            await remove_tails(self._context, frozenset(self._names), self._started_ms)
            del self._names[: look.before]

    async def _put(self, parts: Sequence[Part], first: int) -> tuple[int, bool]:
        """Put the parts from `first` on, as many as one tail takes; gives the place behind them, and whether
        they are stored."""
        context = self._context
        cluster, node = context.config.cluster.id, context.config.node.id
        incarnation = context.controller.machine.incarnation
        assert incarnation is not None, "asked for by the caller; it never changes"

        def encoded() -> tuple[bytes, int]:
            sections = list(fill(parts, first, DOCUMENT_BYTES))
            return TailDocument(cluster, node, sections).encode(), first + len(sections)

        data, behind = await self._loop.run_in_executor(self._pool, encoded)
        put = parts[first:behind]
        self._made_ms = max(self._made_ms, context.wall_ms())
        name = tail_name(cluster, incarnation, self._made_ms, node, context.rng.getrandbits(32))
        self._names.append(name)
        # Other nodes wait with their next cut for this one.
        stored = await self._publisher.put(name, [data], max_delay_seconds=self._seconds)
        if stored:
            self.measures.published += 1
            self.measures.published_bytes += len(data)
            self.measures.states += sum(part.captured is not None for part in put)
        else:
            self._sections.begin_again(put)
        return behind, stored

    # In step with the other nodes.

    async def _serve_due(self, peer: int, payload: Any) -> bool:
        """Whether this node has anything that no cut had yet."""
        if not self._running:
            raise CallFailed("this node publishes no tails, or not yet", unknown=False)
        return self._uncut or self._sections.is_due()

    async def _serve_cut(self, peer: int, payload: Any) -> list[Any]:
        """Take a step of a cut: `[token, step]`. A phase gives `[group, entry, term]` of each group of its
        kinds that is led here; the last step the time in the name of the first tail that leads to them."""
        match payload:
            case [int(token), int(step)] if 0 <= step <= STORED:
                pass
            case _:
                raise CallFailed("that is not a token and a step", unknown=False)
        if step == 0:
            self._begin_cut(token)
        cut = self._cut
        if cut is None or cut.token != token:
            raise CallFailed("that cut is over here", unknown=False)
        if step < STORED:
            cut.asked[step].set()
        return await asyncio.shield(cut.answers[step])

    def _begin_cut(self, token: int) -> None:
        if self._context.controller.machine.incarnation is None or not self._running:
            raise CallFailed("this node publishes no tails, or not yet", unknown=False)
        if self._cut is not None:
            # Whatever it waits for does not come any more. What it has is stored first.
            self._cut.end("another cut has begun")
        cut = self._cut = _Cut(token, self._loop)
        self._cut_at = self._loop.time()
        task = self._loop.create_task(self._run_cut(cut))
        self._cutting.add(task)
        task.add_done_callback(self._cutting.discard)

    async def _run_cut(self, cut: _Cut) -> None:
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._turn.acquire()
            try:
                await self._take_cut(cut)
            finally:
                self._turn.release()
        except TimeoutError:
            cut.end("what this node published before is not stored yet")
        except Exception:
            log.exception("%s", self._retried)
        finally:
            cut.end("the cut broke off")

    async def _take_cut(self, cut: _Cut) -> None:
        look = self._begin()
        try:
            for step, kinds in enumerate(PHASES):
                await self._take_phase(cut, step)
                await self._sections.add_due(look.parts, kinds, all_states=look.all_states)
                cut.answer(step, self._sections.entries(cut.led))
            whole = await self._store(look)
        except BaseException:
            self._sections.begin_again(look.parts)
            raise
        self._uncut = cut.over or not whole
        if not self._uncut:
            needed = self._names[look.before if look.all_states else 0 :]
            cut.answer(STORED, [parse_tail_name(name).made_ms for name in needed[:1]])
        await self._prune(look)

    async def _take_phase(self, cut: _Cut, step: int) -> None:
        """Wait until a phase is asked for, and see what is led here. A cut that is over goes on at once: its
        tails are as good as any."""
        try:
            async with asyncio.timeout(STEP_SECONDS):
                await cut.asked[step].wait()
                if not cut.over:
                    cut.led = await self._sections.led(PHASES[step])
        except TimeoutError:
            cut.end("the cut took too long")
