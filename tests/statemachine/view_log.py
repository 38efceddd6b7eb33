"""Programs of views in a controller's log, for tests."""

from __future__ import annotations

import itertools
from typing import Any

from strandline.statemachine.controller.controller_commands import (
    ApplyViews,
    CutOverViews,
    PauseViews,
    StartViewWorker,
    ViewsPaused,
)
from strandline.statemachine.controller.view_state import ViewProgram
from strandline.statemachine.kafka_errors import KafkaError
from tests.statemachine.controller_harness import Log, topic_id

A, B, C = "a" * 64, "b" * 64, "c" * 64
ids = itertools.count(1000)


class Views(Log):
    """A log with three nodes and the topics `in` and `other`."""

    def __init__(self, level: int = 2) -> None:
        super().__init__(nodes=3, level=level)
        self.topic(self.creation(1, "in", partitions=2))
        self.topic(self.creation(2, "other"))

    def request(
        self, *views: tuple[str, str, str], inputs: tuple[str, ...] = ("in",), **more: Any
    ) -> ApplyViews:
        """Views as name, topic and sink."""
        fields = {"program": "p", "nonce": next(ids), "text": "SQL", "replication_factor": 3, "made_at": 0}
        rows = tuple((view, topic, topic_id(next(ids)), 2, sink) for view, topic, sink in views)
        return ApplyViews(**{**fields, "views": rows, "inputs": inputs, **more})

    def begin(self, *views: tuple[str, str, str], **more: Any) -> int:
        result = self.do(self.request(*views, **more))
        assert isinstance(result, int), result
        return result

    def live(self, *views: tuple[str, str, str], **more: Any) -> int:
        """Begin, and cut over."""
        attempt = self.begin(*views, **more)
        self.cut_over(attempt)
        return attempt

    def paused(self, attempt: int, worker: int = 70) -> int:
        """Have processes of an attempt and of the live version, which stops; the pause, 0 if none is live."""
        self.do(StartViewWorker("p", attempt, False, worker))
        if not self.program.live:
            return 0
        self.do(StartViewWorker("p", self.program.live.attempt, True, 60))
        pause = self.number(PauseViews("p", attempt, worker, b"5"))
        self.number(ViewsPaused("p", self.program.live.attempt, 60, pause, b"6"))
        return pause

    def cut_over(self, attempt: int, worker: int = 70) -> None:
        pause = self.paused(attempt, worker)
        self.number(CutOverViews("p", attempt, worker, pause, "views/state"))

    def number(self, command: Any) -> int:
        result = self.do(command)
        assert isinstance(result, int), result
        return result

    @property
    def program(self) -> ViewProgram:
        return self.machine.view_programs["p"]

    def pause(self) -> int | None:
        """The number of the pause that has not ended."""
        return self.program.pause.number if self.program.pause else None

    @property
    def names(self) -> dict[str, bytes]:
        """Topics that are no inputs, by name."""
        return {one.name: one.topic_id for one in self.machine.topics if one.name not in ("in", "other")}

    def void(self, command: Any, what: str) -> None:
        error, message = self.refused(command)
        assert error is KafkaError.INVALID_REQUEST
        assert what in message
