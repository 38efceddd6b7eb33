"""A part that looks now and then goes on after a look that failed, and stops amid one."""

from __future__ import annotations

import asyncio

import pytest

from strandline.node.controller.periodic import PeriodicPart
from tests.runtime.jumping_loop import run


class Part(PeriodicPart):
    """Its looks fail, or last for `seconds`."""

    def __init__(self, seconds: float | None) -> None:
        super().__init__(1.0, "the part will look again", loop=asyncio.get_running_loop())
        self.begun = self.ended = 0
        self._lasts = seconds

    async def _look(self) -> None:
        self.begun += 1
        if self._lasts is None:
            raise ValueError("nothing to see")
        await asyncio.sleep(self._lasts)
        self.ended += 1


def test_a_look_that_failed_is_told_under_the_name_of_the_part_and_made_up_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def looks() -> None:
        part = Part(None)
        part.start()
        await asyncio.sleep(3.5)
        part.close()
        assert part.begun == 3

    run(looks)
    told = [(record.name, record.getMessage()) for record in caplog.records]
    assert told == [(__name__, "the part will look again")] * 3


def test_a_part_that_is_closed_amid_a_look_does_not_end_it() -> None:
    async def looks() -> None:
        part = Part(10.0)
        part.start()
        await asyncio.sleep(2.0)
        part.close()
        await asyncio.sleep(60.0)
        assert (part.begun, part.ended) == (1, 0)

    run(looks)
