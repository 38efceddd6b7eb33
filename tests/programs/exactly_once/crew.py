"""The workers as processes, and what is done to them: kill -9, or a pause past their session."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests import ROOT
from tests.programs.exactly_once.worker import FENCED, SESSION_MS

_QUIET_SECONDS: Final = (0.5, 4.0)
_DEAD_SECONDS: Final = (0.1, 3.0)
_PAUSED_SECONDS: Final = (SESSION_MS / 1000 + 1, SESSION_MS / 1000 + 4)
_PAUSES: Final = 0.25
"""The part of the faults that are pauses; the others kill."""
_STOP_SECONDS: Final = 30.0


class Crew:
    """`count` workers, started again whenever they are gone. Times are in seconds."""

    def __init__(self, bootstrap: str, folder: Path, count: int, *, transactions: bool, seed: int) -> None:
        self._bootstrap = bootstrap
        self._folder = folder
        self._transactions = transactions
        self._rng = random.Random(seed)
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._numbers = range(1, count + 1)
        self.done: Counter[str] = Counter()
        """kills, pauses, fenced, ended (by itself, and not because it was fenced)."""

    def start(self) -> None:
        for number in self._numbers:
            self._start(number)

    def hurt(self, until: Callable[[], bool], ended: threading.Event) -> None:
        """Kill and pause, one worker after the other, until it is over; then all of them run."""
        due: list[tuple[float, Callable[[int], None], int]] = []
        strike = time.monotonic() + self._rng.uniform(*_QUIET_SECONDS)
        while not until() and not ended.is_set():
            ended.wait(0.05)
            now = time.monotonic()
            for one in [one for one in due if one[0] <= now]:
                due.remove(one)
                one[1](one[2])
            busy = {number for _, _, number in due}
            self._revive(busy)
            if now < strike:
                continue
            strike = now + self._rng.uniform(*_QUIET_SECONDS)
            free = [number for number in self._numbers if number not in busy]
            if not free:
                continue
            number = self._rng.choice(free)
            if self._rng.random() < _PAUSES:
                self._workers[number].send_signal(signal.SIGSTOP)
                self.done["pauses"] += 1
                due.append((now + self._rng.uniform(*_PAUSED_SECONDS), self._resume, number))
            else:
                self._workers[number].kill()
                self._workers[number].wait()
                self.done["kills"] += 1
                due.append((now + self._rng.uniform(*_DEAD_SECONDS), self._start, number))
        for _, undo, number in due:
            undo(number)

    def tend(self, until: Callable[[], bool]) -> None:
        """Leave them alone until it is over, but for starting those again that gave up."""
        while not until():
            self._revive(set())
            time.sleep(0.1)

    def stop(self) -> None:
        """SIGTERM; by force what does not end."""
        for worker in self._workers.values():
            worker.send_signal(signal.SIGCONT)
            worker.terminate()
        deadline = time.monotonic() + _STOP_SECONDS
        for worker in self._workers.values():
            try:
                worker.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()

    def said(self) -> Counter[str]:
        """How often workers said what: the first words of their lines, up to the colon."""
        words: Counter[str] = Counter()
        for log in self._folder.glob("worker-*.log"):
            words.update(
                line.partition(":")[0] for line in log.read_text(errors="replace").splitlines() if ":" in line
            )
        return words

    def _revive(self, busy: set[int]) -> None:
        for number in self._numbers:
            code = self._workers[number].poll()
            if number not in busy and code is not None:
                self.done["fenced" if code == FENCED else "ended"] += 1
                self._start(number)

    def _resume(self, number: int) -> None:
        self._workers[number].send_signal(signal.SIGCONT)

    def _start(self, number: int) -> None:
        settings = {"bootstrap": self._bootstrap, "number": number, "transactions": self._transactions}
        with (self._folder / f"worker-{number}.log").open("ab") as log:
            self._workers[number] = subprocess.Popen(
                [sys.executable, "-P", "-m", "tests.programs.exactly_once.worker", json.dumps(settings)],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
