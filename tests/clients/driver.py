"""The near end of a driver: starts the process, gives it commands, waits for answers, and ends it.

What the commands are is told in drivers/serve.py.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests import ROOT

ANSWER_SECONDS: Final = 45.0
"""Longer than any client's own wait for a request, which ends in an answer that says why."""

END_SECONDS: Final = 10.0
"""From the end of a process's answers to its own: it may write a core dump in between."""

Place = tuple[str, int]
"""Topic and partition."""


class Refused(Exception):
    """The client raised an error: its code, as Kafka or the client names it, and what it says."""

    def __init__(self, driver: str, did: str, code: str, reason: str) -> None:
        super().__init__(f"{driver}: {did} failed with {code}: {reason}")
        self.code = code


class Lost(Exception):
    """The driver itself ended, or does not answer: what it wrote to standard error comes with it."""


class Polled(NamedTuple):
    """What one poll gave."""

    records: list[tuple[str, int, int, str]]
    """Topic, partition, offset, value."""
    assigned: frozenset[Place]
    revoked: list[Place]

    @property
    def values(self) -> list[str]:
        return [record[3] for record in self.records]


class Lines:
    """A process that is given lines and answers each by one; what it says to standard error is in `log`."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self._log = log
        self._buffer = b""
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, cwd=ROOT, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )

    def write(self, line: str) -> None:
        """Give it a line. Raises Lost."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
        except OSError as error:
            raise Lost(f"{self.name} takes no command: {error}; it said: {self._said()}") from error

    def read(self, did: str) -> bytes:
        """The answer to what it was given. Raises Lost."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + ANSWER_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise Lost(f"{self.name} does not answer {did}; it said: {self._said()}")
                got = os.read(self._process.stdout.fileno(), 1 << 20)
                if not got:
                    raise Lost(f"{self.name} {self._ending(did)}; it said: {self._said()}")
                self._buffer += got
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _ending(self, did: str) -> str:
        try:
            return f"ended at {did}, status {self._process.wait(END_SECONDS)}"
        except subprocess.TimeoutExpired:
            return f"answers no more at {did}, and is still there {END_SECONDS:g} s later"

    def _said(self) -> str:
        return self._log.read_text(errors="replace").strip()[-500:] or "nothing"


class Driver:
    """One process; commands are methods of `ask` by name."""

    def __init__(self, name: str, command: Sequence[str], bootstrap: str, log: Path) -> None:
        self.name = name
        self._asked = ""
        self.dead = False
        self._lines = Lines(name, [*command, bootstrap], log)

    def ask(self, do: str, **fields: Any) -> Any:
        """Carry out one command. Raises Refused and Lost."""
        self.tell(do, **fields)
        return self.hear()

    def tell(self, do: str, **fields: Any) -> None:
        """Give a command without waiting for its answer, which `hear` brings."""
        assert not self._asked, f"{self.name} still owes the answer to {self._asked}"
        self._asked = do
        self._lines.write(json.dumps({"do": do, **fields}))

    def hear(self) -> Any:
        did, self._asked = self._asked, ""
        answer = json.loads(self._lines.read(did))
        if (failed := answer.get("failed")) is not None:
            raise Refused(self.name, did, failed["code"], failed["reason"])
        return answer["ok"]

    def poll(self, seconds: float = 0.1, count: int = 1000) -> Polled:
        self.tell("poll", seconds=seconds, count=count)
        return self.polled()

    def polled(self) -> Polled:
        """The answer to a poll that was told."""
        found = self.hear()
        return Polled(
            [(topic, number, offset, value) for topic, number, offset, value in found["records"]],
            frozenset((topic, number) for topic, number in found["assigned"]),
            [(topic, number) for topic, number in found["revoked"]],
        )

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self.dead = True
        self._lines.kill()


def poll_all(members: Iterable[Driver], seconds: float = 0.1) -> list[Polled]:
    """Poll members side by side: a rebalance needs all of them."""
    told = list(members)
    for member in told:
        member.tell("poll", seconds=seconds, count=1000)
    return [member.polled() for member in told]
