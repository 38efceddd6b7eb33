"""Attribution of the event loop's lag to a part of the node, which a histogram alone cannot give.

A thread looks whether the timer of `LoopLag` rang when it was due. If not, it looks every few milliseconds
which function the loop's thread is in, until the timer rings: the outermost of this package, which is the
callback or the task that does not end. Where the loop's thread is in none of them, the system or another
thread has it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from threading import Event, Thread, get_ident
from types import FrameType
from typing import Final

LATE: Final = 0.02
"""Seconds behind its time from which a timer counts as held up."""
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
        self._woken = Event()
        """Ends a wait of the thread: what it looked into is over, or the watch is."""
        self._looks = False
        self._stopped = False
        self._watched = 0

    def start(self) -> None:
        """Watch the calling thread."""
        self._watched = get_ident()
        Thread(target=self._watch, name="held-loop", daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped = True
        self._woken.set()

    def due(self, at: float) -> None:
        """The timer is to ring then, by the clock."""
        self._due = at
        if self._looks:
            # Else the thread sleeps, and finds the new time by itself: to wake it each time would cost more
            # than all the rest of the watch.
            self._woken.set()

    def _watch(self) -> None:
        while not self._stopped:
            due, now = self._due, self._clock()
            # What ended a look must not end the next sleep, and all those behind it.
            self._woken.clear()
            if due is None or now < due + LATE:
                self._woken.wait(LATE if due is None else due + LATE - now)
                continue
            self._looks = True
            seen: Counter[str] = Counter()
            while self._due == due and not self._stopped:
                seen[part_of(sys._current_frames().get(self._watched))] += 1
                self._woken.wait(SAMPLE)
            self._looks = False
            if seen:
                self.note(seen, self._clock() - due)

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
