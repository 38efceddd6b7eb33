"""A node's end of a worker: starts the process, hands it jobs, and outlives its death.

The worker is started for the first job and ended when none came for a while, so a node without much to do
has no second process. Whatever goes wrong with it (it dies, says nonsense, takes for ever) is a failed job
that may be tried again, with a new process. Secrets go through the pipe: command lines are for all to see.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from strandline import node
from strandline.node.objectstore.opening import StorePlace
from strandline.node.worker.worker_frames import (
    LENGTH,
    MISUNDERSTOOD,
    BadFrame,
    framed,
    length_of,
    message_of,
)

log = logging.getLogger(__name__)

END_SECONDS: Final = 5.0
"""Seconds that a process has to end after it was asked to."""
MAX_SAID_BYTES: Final = 64 * 1024
"""Most of one process's standard error that gets into the log."""
STOPPING: Final = "the node is stopping"


def program(module: str) -> Sequence[str]:
    """The command line of a worker."""
    return (sys.executable, "-P", "-m", module)


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """Times in seconds."""

    idle_seconds: float = 60.0
    """A process without a job ends after this."""
    start_seconds: float = 180.0
    """A start is a second of processor time, and a worker gets little of a busy machine's."""
    job_seconds: float = 900.0
    """Above what the store may take in all, with its own attempts and timeouts."""


LIMITS: Final = WorkerLimits()


class WorkerFailed(Exception):
    """There is no answer to a job; `str()` is the reason in one line. The same job may be tried again."""


class _Ended(Exception):
    """The worker cannot go on; why, in a few words."""


class WorkerLink:
    """One worker process, or none: there is none until it is asked, and after it was not for a while."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        place: StorePlace,
        settings: Sequence[Any],
        *,
        loop: asyncio.AbstractEventLoop,
        limits: WorkerLimits,
        on_start: Callable[[], None],
    ) -> None:
        """`name` is for the log. The process opens the store of `place` and is told its `settings`."""
        self._name = name
        self._command = command
        self._start = ["start", place.url, dict(place.options), place.owner, list(settings)]
        self._loop = loop
        self._limits = limits
        self._on_start = on_start
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def process_id(self) -> int | None:
        """Of the worker, while there is one."""
        return None if self._process is None else self._process.pid

    async def ask(self, messages: Iterable[Sequence[Any]], kind: str) -> list[Any]:
        """Have a job done; what the answer of this kind tells.

        Raises WorkerFailed, and ValueError with what the worker says if it refuses the job. A caller that is
        cancelled takes the process with it.
        """
        async with self._turn:
            self._rest()
            if self._closed:
                raise WorkerFailed(STOPPING)
            try:
                async with asyncio.timeout(self._limits.start_seconds):
                    process = await self._started()
                async with asyncio.timeout(self._limits.job_seconds):
                    answered, *told = await self._exchange(process, messages)
                if answered not in (kind, "invalid"):
                    raise BadFrame(f"an answer of kind {answered!r}")
            except (_Ended, BadFrame, OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                raise WorkerFailed(await self._failed(error)) from error
            except BaseException:
                await self._end(by_force=True)
                raise
            finally:
                if self._process is not None and not self._closed:
                    self._idle = self._loop.call_later(self._limits.idle_seconds, self._tired)
        if answered == "invalid":
            raise ValueError(told[0])
        return told

    async def close(self) -> None:
        """End the process, and the job in progress, which fails; all later ones fail."""
        self._closed = True
        self._rest()
        if self._process is not None and self._process.returncode is None:
            self._process.kill()  # a job under way hears of it, and cleans up
        async with self._turn:
            await self._end()

    async def _failed(self, error: Exception) -> str:
        code = await self._end(by_force=isinstance(error, TimeoutError))
        if self._closed:
            return STOPPING
        if isinstance(error, TimeoutError):
            reason = "it took too long"
        elif isinstance(error, _Ended | BadFrame):
            reason = str(error)
        else:
            reason = _how(code)
        log.warning("the %s failed: %s", self._name, reason)
        return f"the {self._name} failed: {reason}"

    # The process.

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        await self._end()
        pipe = asyncio.subprocess.PIPE
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment()
        )
        self._listening = self._loop.create_task(listen(self._name, process))
        self._on_start()
        kind, *told = await self._exchange(process, [self._start])
        if kind == "refused":
            raise _Ended(told[0])
        if kind != "ready":
            raise BadFrame(f"an answer of kind {kind!r}")
        log.info("the %s runs as process %d", self._name, process.pid)
        return process

    async def _exchange(
        self, process: asyncio.subprocess.Process, messages: Iterable[Sequence[Any]]
    ) -> list[Any]:
        assert process.stdout is not None
        try:
            await _send(process, messages)
        except OSError:
            # It has ended, or reads no more. What it said before that tells more than the end does.
            async with asyncio.timeout(END_SECONDS):
                return await _answer(process.stdout)
        return await _answer(process.stdout)

    def _rest(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _tired(self) -> None:
        self._idle = None
        self._ending = self._loop.create_task(self._end_idle())

    async def _end_idle(self) -> None:
        async with self._turn:
            if self._idle is None:  # otherwise there was a job meanwhile
                await self._end()

    async def _end(self, *, by_force: bool = False) -> int | None:
        """See the process off, by force if need be; its exit code. A cancelled wait still kills it."""
        process, self._process = self._process, None
        listening, self._listening = self._listening, None
        if process is None:
            return None
        assert process.stdin is not None
        process.stdin.close()
        try:
            if by_force:
                process.kill()
            async with asyncio.timeout(END_SECONDS):
                await process.wait()
                if listening is not None:
                    await listening
        except ProcessLookupError:
            pass  # it was quicker
        except TimeoutError:
            log.warning("the %s did not stop in time, and was killed", self._name)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            if listening is not None:
                listening.cancel()
        code = await process.wait()
        # asyncio closes a pipe only after it was read to its end, and these pipes have no reader any more.
        cast(Any, process)._transport.close()
        return code


async def _send(process: asyncio.subprocess.Process, messages: Iterable[Sequence[Any]]) -> None:
    assert process.stdin is not None
    for message in messages:
        if process.stdin.is_closing():  # a loop may raise what it likes for a write to a closed pipe
            raise ConnectionResetError("its standard input is closed")
        process.stdin.write(framed(message))
        await process.stdin.drain()
        await asyncio.sleep(0)  # a full pipe is not the only reason to let others go first


async def _answer(said: asyncio.StreamReader) -> list[Any]:
    length = length_of(await said.readexactly(LENGTH.size))
    return message_of(await said.readexactly(length))


def _how(code: int | None) -> str:
    """An exit code as the end of a process; the kernel takes workers first when memory runs out."""
    if code == MISUNDERSTOOD:
        return (
            "it is of another build than this node, as after an upgrade that was brought while the node ran:"
            " restart the node"
        )
    if code is None or code >= 0:
        return f"it ended with code {code}"
    known = {one.value: one.name for one in signal.Signals}
    memory = ", as the kernel does when memory runs out" if code == -signal.SIGKILL else ""
    return f"it was ended by {known.get(-code, f'signal {-code}')}{memory}"


async def listen(name: str, process: asyncio.subprocess.Process) -> None:
    """Write the worker's standard error to the log, line by line, up to MAX_SAID_BYTES."""
    assert process.stderr is not None
    left = MAX_SAID_BYTES
    while True:
        try:
            line = await process.stderr.readline()
        except ValueError:
            continue  # the line is longer than the reader's limit
        if not line:
            return
        left -= len(line)
        if left >= 0:
            log.warning("%s %d: %s", name, process.pid, line.decode(errors="replace").rstrip())


def environment() -> dict[str, str]:
    """This process's, and where the program is: it may have been found by the folder we were started in."""
    package = os.path.dirname(os.path.abspath(node.__path__[0]))
    paths = [os.path.dirname(package), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
