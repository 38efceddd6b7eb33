"""A fence on a loop that a test turns, and requests to it as tasks."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from strandline.node.partition.fence import Fence, Grant, Permit
from strandline.statemachine.partition.epoch_window import EpochWindow
from tests.runtime.manual_loop import ManualLoop, manual_loop

TERM = 3


class Bench:
    """A fence opened with a window of one epoch, as after a recovery; None leaves it closed."""

    made: ClassVar[list[Bench]] = []

    def __init__(self, applied: int | None = None, fence_class: type[Fence] = Fence) -> None:
        self.loop: ManualLoop = manual_loop()
        self.made.append(self)
        self.fence = fence_class(self.loop)
        if applied is not None:
            self.fence.open(EpochWindow.recovered(TERM, applied))

    def ask(self, epoch: int) -> asyncio.Task[Grant]:
        """A request that has gone as far as it can."""
        task = asyncio.Task(self.fence.acquire(epoch), loop=self.loop)
        self.loop.run()
        return task

    def permit(self, epoch: int) -> Permit:
        """A permit that is there at once."""
        granted = self.fence.try_acquire(epoch)
        assert isinstance(granted, Permit), granted
        return granted

    def slide(self, *epochs: int) -> None:
        for epoch in epochs:
            self.permit(epoch).release()

    def release(self, *permits: Permit) -> None:
        for permit in permits:
            permit.release()
        self.loop.run()

    @classmethod
    def end_all(cls) -> None:
        """No request of any bench is left waiting."""
        while cls.made:
            bench = cls.made.pop()
            bench.fence.close("the test is over")
            bench.loop.run()

    @property
    def ends(self) -> tuple[int | None, int | None]:
        window = self.fence.window
        assert window is not None
        return window.oldest, window.newest


def granted(task: asyncio.Task[Grant]) -> Permit:
    permit = task.result()
    assert isinstance(permit, Permit), permit
    return permit
