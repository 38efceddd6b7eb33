"""A view worker's end of the link to its node: the program's row as it changes, commands and their answers.

Frames go over standard input and output. When the input closes the node is gone, and the process ends at
once: a transaction that is open then is aborted by the next process.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from strandline.node.worker.worker_frames import LENGTH, BadFrame, framed, length_of, message_of
from strandline.statemachine.controller.controller_commands import ViewCommand, encode
from strandline.statemachine.controller.view_state import ViewProgram, programs_from

ANSWER_SECONDS: Final = 40.0
"""More than the node tries for."""


class NodeRefuses(Exception):
    """The node or the controller does not do what was asked; `late`: another process has this one's place."""

    def __init__(self, reason: str, *, late: bool) -> None:
        super().__init__(reason)
        self.late = late


class HoldLost(Exception):
    """Records that were to be held are cleaned away; `str()` says where."""


@dataclass(frozen=True, slots=True)
class TopicPlace:
    """A topic of the program as it is now."""

    name: str
    partitions: int
    compacted: bool
    max_message_bytes: int
    """Of one batch, as the topic is set."""
    topic_id: bytes


@dataclass(frozen=True, slots=True)
class Known:
    """The program's row, and its topics by id, as the node last told them; one that is gone is missing."""

    program: ViewProgram
    topics: Mapping[bytes, TopicPlace]


class NodeLink:
    """Reads in a thread of its own; the rest is called by the worker's one thread."""

    def __init__(self) -> None:
        # What prints must not get between the frames.
        self._out: BinaryIO = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
        self._numbers = itertools.count(1)
        self._answers: dict[int, list[Any]] = {}
        self._changed = threading.Condition()
        self._known: Known | None = None
        self._start: list[Any] | None = None
        threading.Thread(target=self._read, name="node", daemon=True).start()

    def started(self) -> list[Any]:
        """The node's first words, once they have come with the program's row."""
        with self._changed:
            self._changed.wait_for(lambda: self._start is not None and self._known is not None)
            assert self._start is not None
            return self._start

    @property
    def known(self) -> Known:
        """The program as the node last told it."""
        assert self._known is not None, "the node says it first"
        return self._known

    def submit(self, command: ViewCommand) -> int:
        """Have the controller apply a command; raises NodeRefuses."""
        return number_of(*self._ask("submit", encode(command)))

    def hold(self, topic: str, reader: str, offsets: Mapping[int, int | None], lease_ms: int) -> None:
        """Hold records of a compacted topic from some offsets on, None: from the end; raises NodeRefuses."""
        kind, value = self._ask("hold", topic, reader, list(offsets.items()), lease_ms)
        if kind == "lost":
            raise HoldLost(str(value))
        if kind != "done":
            raise NodeRefuses(str(value), late=False)

    def release(self, topic: str, reader: str, partitions: Sequence[int]) -> None:
        """End a reader's holds; raises NodeRefuses."""
        kind, value = self._ask("release", topic, reader, list(partitions))
        if kind != "done":
            raise NodeRefuses(str(value), late=False)

    def tell(self, status: Mapping[str, Any]) -> None:
        """Tell the node how it goes."""
        self._send(["status", dict(status)])

    def _ask(self, kind: str, *fields: Any) -> list[Any]:
        number = next(self._numbers)
        self._send([kind, number, *fields])
        with self._changed:
            if not self._changed.wait_for(lambda: number in self._answers, ANSWER_SECONDS):
                raise NodeRefuses("the node does not answer", late=False)
            return self._answers.pop(number)

    def _send(self, message: list[Any]) -> None:
        try:
            self._out.write(framed(message))
            self._out.flush()
        except OSError:
            os._exit(0)

    def _read(self) -> None:
        source = sys.stdin.buffer
        try:
            while len(head := source.read(LENGTH.size)) == LENGTH.size:
                self._take(message_of(source.read(length_of(head))))
        except (BadFrame, ValueError, TypeError, LookupError) as error:
            print(f"the node sent a message that cannot be read: {error}", file=sys.stderr, flush=True)
            os._exit(3)
        os._exit(0)

    def _take(self, message: list[Any]) -> None:
        kind, *fields = message
        with self._changed:
            match kind:
                case "start":
                    self._start = fields
                case "program":
                    row, topics = fields
                    [program] = programs_from([row]).values()
                    self._known = Known(program, {one[0]: TopicPlace(*one[1:], *one[:1]) for one in topics})
                case "answer":
                    number, *answer = fields
                    self._answers[number] = answer
                case _:
                    raise BadFrame(f"there is no {kind!r}")
            self._changed.notify_all()


def number_of(kind: str, value: int | str) -> int:
    """Read the answer to a command; raises NodeRefuses."""
    if kind != "done":
        raise NodeRefuses(str(value), late=kind == "refused")
    return int(value)
