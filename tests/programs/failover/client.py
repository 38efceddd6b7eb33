"""Clients of a replicated register map: a steady stream of commands, each with an id of its own.

They know only what answers tell them: where the leader is they learn by asking and by silence. A rejected
command is sent again under its own id, so a rejection that was none would show as a command applied twice;
one that ended as unknown is never sent again.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from tests.programs.failover.verdict import Fate
from tests.programs.processes.control import NodeProcess

_PATIENCE_SECONDS = 0.15
"""An answer that takes longer makes the clients try another node."""

_SUSPICION_SECONDS = 1.0
"""How long a node that kept silent is not tried again on another's advice."""

_RETRY_SECONDS = 0.02
_MAX_OPEN = 4_096
_KEYS = 64


class Clients:
    """So many commands a second, whatever the nodes do."""

    def __init__(self, nodes: Sequence[NodeProcess], rate: float) -> None:
        self.fates: dict[int, Fate] = {}
        self.acknowledged_at: list[float] = []
        """time.monotonic() of every acknowledgement."""
        self.rejections = 0
        self._nodes = nodes
        self._period = 1 / rate
        self._ids = itertools.count(1)
        self._target = 0
        self._suspects: dict[int, float] = {}
        self._open: dict[int, tuple[int, float, asyncio.Future[dict[str, Any]]]] = {}
        """Node asked, when, and the answer to come, of every command without one."""
        self._running = True

    async def run(self) -> None:
        """Send until `stop`; lost time is not made up for."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while self._running:
            self._watch()
            if len(self._open) < _MAX_OPEN:
                self._send(next(self._ids))
            due = max(due + self._period, loop.time() - 0.1)
            await asyncio.sleep(due - loop.time())

    async def stop(self, seconds: float) -> None:
        """Send no more and wait at most so long for answers; what has none then is unknown."""
        self._running = False
        if self._open:
            await asyncio.wait([future for _, _, future in self._open.values()], timeout=seconds)

    def _watch(self) -> None:
        """Turn away from a node that does not answer."""
        now = time.monotonic()
        for place, asked_at, _ in self._open.values():
            if place == self._target:
                if now - asked_at > _PATIENCE_SECONDS:
                    self._turn_from(place)
                return

    def _turn_from(self, place: int) -> None:
        if place == self._target:
            self._suspects[place] = time.monotonic() + _SUSPICION_SECONDS
            self._target = (place + 1) % len(self._nodes)

    def _send(self, command: int) -> None:
        self.fates[command] = Fate.UNKNOWN
        place = self._target
        future = self._nodes[place].request(
            "propose", group=0, command=command, key=f"register {command % _KEYS}"
        )
        self._open[command] = place, time.monotonic(), future
        future.add_done_callback(partial(self._ended, command, place))

    def _ended(self, command: int, place: int, future: asyncio.Future[dict[str, Any]]) -> None:
        self._open.pop(command, None)
        if future.cancelled() or future.exception() is not None:
            self._turn_from(place)
            return
        answer = future.result()
        if answer["outcome"] == "applied":
            self.fates[command] = Fate.ACKNOWLEDGED
            self.acknowledged_at.append(time.monotonic())
        elif answer["outcome"] == "rejected":
            self.fates[command] = Fate.REJECTED
            self.rejections += 1
            self._follow(place, answer.get("leader"))
            if self._running:
                asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._retry, command)

    def _follow(self, place: int, leader: int | None) -> None:
        """Go where the node that rejected says the leader is, unless that one just kept silent."""
        if place != self._target:
            return
        hint = None if leader is None else leader - 1
        if hint is not None and self._suspects.get(hint, 0.0) < time.monotonic():
            self._target = hint
        else:
            self._target = (place + 1) % len(self._nodes)

    def _retry(self, command: int) -> None:
        if self._running:
            self._send(command)
