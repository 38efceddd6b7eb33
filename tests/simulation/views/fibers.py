"""Code that blocks, as part of the simulated world: one thread runs at a time, and the world says which."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.simulation.world import World


class Killed(BaseException):
    """The process is killed where it waits."""


class Fiber:
    """A thread that runs only within events of the world; whatever it waits for is another event."""

    def __init__(self, world: World, body: Callable[[], None]) -> None:
        """`body` begins with the next event, and ends with Killed wherever it waits, once it was killed."""
        self._world = world
        self._body = body
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._waits = 0
        self._due: int | None = None
        """The wait that has ended while the process hung."""
        self.hung = False
        self.killed = False
        self.ended = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        world.call_later(0.0, self.resume, 0)

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self.killed:
                self._body()
        except Killed:
            pass
        except BaseException as error:
            self._world.fail(None, f"a process raised {type(error).__name__}", error)
        self.ended = True
        self._back.release()

    @property
    def running(self) -> bool:
        """Whether the caller is within it."""
        return threading.current_thread() is self._thread

    def wait(self, begin: Callable[[Callable[[], None]], None]) -> None:
        """Within the fiber: wait until the function given to `begin` is called, by an event."""
        if self.killed:
            raise Killed
        self._waits += 1
        number = self._waits
        begin(lambda: self.resume(number))
        self._back.release()
        self._go.acquire()
        if self.killed:
            raise Killed

    def resume(self, number: int) -> None:
        """Within an event: go on, if that is what it waits for."""
        if self.ended or number != self._waits:
            return
        if self.hung and not self.killed:
            self._due = number
            return
        self._go.release()
        self._back.acquire()

    def hang(self) -> None:
        """Nothing of the process runs, as after SIGSTOP."""
        self.hung = True

    def wake(self) -> None:
        """It goes on where it was."""
        self.hung = False
        due, self._due = self._due, None
        if due is not None:
            self._world.call_later(0.0, self.resume, due)

    def kill(self) -> None:
        """End it. Within an event of the world, not within the fiber."""
        self.killed = True
        self.resume(self._waits)
