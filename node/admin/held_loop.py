"""Attribution of the event loop's lag to a part of the node, which a histogram alone cannot give.

A thread sleeps while each tick comes when it is due. If one does not, the thread looks every few milliseconds
which function the loop's thread is in, until the tick comes: the outermost of this package, which is the
callback or the task that does not end. Where the loop's thread is in none of them, the system or another
thread has it.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from threading import Thread, get_ident
from types import FrameType
from typing import Final

from strandline.node.runtime.kernel_timer import KernelTimer

LATE: Final = 0.02
"""Seconds behind its time from which a tick counts as held up."""
SAMPLE: Final = 0.01
MAX_PARTS: Final = 64
"""Parts that are counted by name; the rest counts as `other`."""
SYSTEM: Final = "system"
OTHER: Final = "other"
_PACKAGE: Final = "strandline.node."
_CARRIERS: Final = frozenset(
    f"{_PACKAGE}{module}"
    for module in (
        "process",
        "raft.mesh.link",
        "raft.mesh.mesh",
        "kafka.wire.connection",
        "kafka.handlers.handler",
    )
)
"""Modules that only bring what others work on: named where nothing of another runs."""


class HeldLoop:
    """Watches the thread it is started in, from `start` to `stop`.

    `seconds` and `longest` are by part, in seconds: all together, and the longest time in one go.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds: dict[str, float] = {}
        self.longest: dict[str, float] = {}
        self._clock = clock
        self._due: float | None = None
        self._due_since = 0.0
        self._late: KernelTimer | None = None
        """It rings when a tick is late, and each tick puts it off."""
        self._stopped = False
        self._watched = 0

    def start(self) -> None:
        """Watch the calling thread, where the system has a timer for that."""
        self._watched = get_ident()
        try:
            self._late = KernelTimer()
        except OSError:
            return
        Thread(target=self._watch, args=(self._late,), name="held-loop", daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped = True
        late, self._late = self._late, None
        if late is not None:
            late.set(SAMPLE)

    def due(self, at: float) -> None:
        """The next tick is to come then, by the clock."""
        self._due_since, self._due = self._clock(), at
        if self._late is not None:
            self._late.set(max(at - self._due_since, 0.0) + LATE)

    def _watch(self, late: KernelTimer) -> None:
        while not self._stopped:
            late.wait()
            due = self._due
            if due is None or self._clock() < due:
                continue  # the tick came as this thread woke
            seen: Counter[str] = Counter()
            while self._due == due and not self._stopped:
                seen[part_of(sys._current_frames().get(self._watched))] += 1
                time.sleep(SAMPLE)
            if seen:
                self.note(seen, (self._clock() if self._due == due else self._due_since) - due)
        late.close()

    def note(self, seen: Counter[str], held: float) -> None:
        """The loop was held up for this long, and was seen in these parts meanwhile."""
        total = seen.total()
        for part, count in seen.items():
            if part not in self.seconds and len(self.seconds) >= MAX_PARTS:
                part = OTHER
            share = held * count / total
            self.seconds[part] = self.seconds.get(part, 0.0) + share
            self.longest[part] = max(self.longest.get(part, 0.0), share)


def part_of(frame: FrameType | None) -> str:
    """Module and function of the outermost frame of this package; SYSTEM when there is none."""
    part = carrier = None
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module in _CARRIERS:
            carrier = f"{module.removeprefix(_PACKAGE)}.{frame.f_code.co_qualname}"
        elif module.startswith(_PACKAGE):
            part = f"{module.removeprefix(_PACKAGE)}.{frame.f_code.co_qualname}"
        frame = frame.f_back
    return part or carrier or SYSTEM
