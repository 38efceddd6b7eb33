"""A node's end of the process that runs one version of a program of views: starts it, serves it, outlives it.

The process ends when its standard input closes, so none outlives its node. What it is doing then has no
effect that is not a committed transaction's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast

from strandline.node.compaction.holding import PartitionHold
from strandline.node.controller.client import Unavailable
from strandline.node.objectstore.opening import StorePlace
from strandline.node.views.view_login import Way
from strandline.node.worker.worker_frames import LENGTH, BadFrame, framed, length_of, message_of
from strandline.node.worker.worker_link import environment, listen, program
from strandline.statemachine.controller.controller import Controller, Result
from strandline.statemachine.controller.controller_commands import (
    Command,
    StartViewWorker,
    ViewCommand,
    decode,
)
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.controller.feature_levels import as_allowed
from strandline.statemachine.controller.topic_config import CLEANUP_POLICY, MAX_MESSAGE_BYTES
from strandline.statemachine.controller.view_state import ViewProgram, group_name
from strandline.statemachine.kafka_errors import Refused
from strandline.statemachine.machine import Corruption

log = logging.getLogger(__name__)

PROGRAM: Final = program("strandline.cluster.view_worker.process")
ALLOCATION: Final = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
}
"""A step's arrays are made and let go of again and again: the system would clear their pages each time. So
the process keeps what is free, and gives it back where it has too much (`memory.py`)."""
SUBMIT_SECONDS: Final = 30.0
END_SECONDS: Final = 5.0
FIRST_PAUSE_SECONDS: Final = 0.5
MOST_PAUSE_SECONDS: Final = 30.0
"""Between the end of a process and the next one; it doubles while they end soon."""
SOON_SECONDS: Final = 30.0
BY_A_PAGE: Final = (-signal.SIGBUS, -signal.SIGSEGV)
"""Ends of a process that touched a page of a mapped file which the disk cannot give, or gave wrong."""
MOST_UNREAD: Final = 4 << 20
"""Bytes that a process has not read. A row of a program has some 100 KiB at most, and changes with each pause
and each process that begins, so one that hangs would fill the node's memory in the end."""


Inputs = Sequence[tuple[str, bytes]]
"""Topics that a version reads, by name and id."""


class VersionName(NamedTuple):
    """A version that is to run, and what it is."""

    program: str
    created: int
    attempt: int
    live: bool


class Submitter(Protocol):
    """The controller: its replica here, and the way to change it."""

    machine: Controller

    async def submit(self, command: Command, timeout: float, /) -> Result | Unavailable: ...  # noqa: ASYNC109


class Holder(Protocol):
    """Holds records of compacted topics for readers."""

    async def hold(
        self, topic: Topic, reader: str, offsets: Mapping[int, int | None], lease_ms: int, /
    ) -> list[PartitionHold]: ...

    async def release(
        self, topic: Topic, reader: str, partitions: Sequence[int], /
    ) -> list[PartitionHold]: ...


class ViewProcess:
    """Runs one version until it is closed, with one process after the other."""

    def __init__(
        self,
        name: VersionName,
        place: StorePlace,
        folder: str,
        way: Way,
        controller: Submitter,
        holding: Holder,
        *,
        loop: asyncio.AbstractEventLoop,
        memory_limit: int,
        command: Sequence[str] = PROGRAM,
    ) -> None:
        self.name = name
        self.status: dict[str, Any] = {}
        """The process's last words about itself."""
        self.starts = 0
        self.failures = 0
        """Processes that ended although they were to run, and the reason of the last."""
        self.failure: str | None = None
        self.inputs: Inputs = ()
        self._place = place
        self._folder = folder
        """Of the program's files on this machine."""
        self.way = way
        """By which the process reaches the nodes."""
        self._sent_off = False
        """The process was ended to begin again by another way: that is no failure."""
        self._controller = controller
        self._holding = holding
        self._loop = loop
        self._memory_limit = memory_limit
        """Bytes that a process may take; it is told."""
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._told: bytes | None = None
        self._held: asyncio.Task[tuple[str, int | str]] | None = None
        """The hold that the process asked for last."""
        self._at_once = asyncio.Event()
        """The next process begins without a pause."""
        self._running = loop.create_task(self._run())

    @property
    def process_id(self) -> int | None:
        """Of the process, while there is one."""
        return None if self._process is None else self._process.pid

    async def close(self) -> None:
        """End the process at once. A hold that it asked for is decided then, and so can be ended."""
        self._running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._running
        if self._held is not None:
            await asyncio.wait([self._held], timeout=END_SECONDS)

    def go_live(self, name: VersionName) -> None:
        """Run the version as the live one from here on.

        The process that has cut over goes on. One that did not know of the cutover ends, and another begins
        at once.
        """
        self.name = name
        self._at_once.set()

    def go_by(self, way: Way) -> None:
        """End the process, to begin again by another way."""
        self.way = way
        if self._process is not None:
            log.info("%s begins again: the listener it came by serves it no more", self._shown())
            self._sent_off = True
            self._process.kill()

    def tell(self) -> None:
        """Tell the process the program as it is now, if that is news."""
        process = self._process
        known = self._controller.machine.view_programs.get(self.name.program)
        if process is None or process.stdin is None or known is None or known.created != self.name.created:
            return
        for version in known.versions():
            if version.attempt == self.name.attempt:
                self.inputs = version.inputs
        told = framed(["program", known, self._topics(known)])
        if told != self._told and not process.stdin.is_closing():
            if process.stdin.transport.get_write_buffer_size() > MOST_UNREAD:
                log.warning("the process of %s does not read what it is told: it hangs", self._shown())
                process.kill()
                return
            self._told = told
            process.stdin.write(told)

    def _topics(self, known: ViewProgram) -> list[Any]:
        wanted = {one for version in known.versions() for _, one in version.inputs}
        wanted |= {view.topic_id for version in known.versions() for view in version.views}
        found = [self._controller.machine.topic_by_id(one) for one in sorted(wanted)]
        return [
            [
                topic.topic_id,
                topic.name,
                len(topic.partitions),
                "compact" in CLEANUP_POLICY.of(topic.configs),
                MAX_MESSAGE_BYTES.of(topic.configs),
            ]
            for topic in found
            if topic is not None
        ]

    async def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            began = self._loop.time()
            try:
                code = await self._once()
            except (OSError, BadFrame, Corruption, ValueError, TypeError, LookupError) as error:
                log.warning("the process of %s failed: %s: %s", self._shown(), type(error).__name__, error)
                self._failed(f"{type(error).__name__}: {error}")
            else:
                if code and not self._sent_off:
                    log.warning("the process of %s ended with code %d", self._shown(), code)
                    if code in BY_A_PAGE:
                        await self._loop.run_in_executor(None, self._remove_files)
                    self._failed(str(self.status.get("failure") or f"it ended with code {code}"))
            pause = FIRST_PAUSE_SECONDS if self._loop.time() - began > SOON_SECONDS else pause
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._at_once.wait()
            self._at_once.clear()
            pause = min(2 * pause, MOST_PAUSE_SECONDS)

    def _remove_files(self) -> None:
        """Remove the files that the process had mapped; the next one fetches what they had."""
        shutil.rmtree(Path(self._folder, str(self.name.attempt)), ignore_errors=True)

    def _failed(self, reason: str) -> None:
        self.failures += 1
        self.failure = reason

    def _shown(self) -> str:
        return f"program {self.name.program}, attempt {self.name.attempt}"

    async def _once(self) -> int:
        pipe = asyncio.subprocess.PIPE
        self.starts += 1
        self.status = {}
        self._sent_off = False
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, stderr=pipe, env={**ALLOCATION, **environment()}
        )
        listening = self._loop.create_task(listen("view worker", process))
        self._process, self._told = process, None
        try:
            assert process.stdin is not None
            place = self._place
            # One name for each process that is there at a time: a folder's writers are told apart by it.
            owner = f"{place.owner}-{self.name.attempt}-{'live' if self.name.live else 'next'}"
            start = ["start", place.url, dict(place.options), owner, self._folder, dict(self.way)]
            version = [self.name.attempt, self.name.live, self._memory_limit]
            process.stdin.write(framed([*start, *version]))
            self.tell()
            log.info("%s runs as process %d", self._shown(), process.pid)
            await self._serve(process)
            async with asyncio.timeout(END_SECONDS):
                return await process.wait()
        finally:
            self._process = None
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            listening.cancel()
            # asyncio closes a pipe only after it was read to its end, and these have no reader any more.
            cast(Any, process)._transport.close()

    async def _serve(self, process: asyncio.subprocess.Process) -> None:
        """Answer what the process asks, one question at a time, until it says no more."""
        assert process.stdin is not None
        assert process.stdout is not None
        while True:
            try:
                head = await process.stdout.readexactly(LENGTH.size)
                message = message_of(await process.stdout.readexactly(length_of(head)))
            except asyncio.IncompleteReadError:
                return
            match message:
                case ["status", dict(status)]:
                    self.status = status
                case ["submit", int(number), bytes(entry)]:
                    answer = await self._submit(entry)
                    self.tell()
                    process.stdin.write(framed(["answer", number, *answer]))
                case ["hold", int(number), str(topic), str(reader), list(offsets), int(lease_ms)]:
                    self._held = self._loop.create_task(self._hold(topic, reader, dict(offsets), lease_ms))
                    answer = await asyncio.shield(self._held)
                    process.stdin.write(framed(["answer", number, *answer]))
                case ["release", int(number), str(topic), str(reader), list(partitions)]:
                    answer = await self._release(topic, reader, partitions)
                    process.stdin.write(framed(["answer", number, *answer]))
                case _:
                    raise BadFrame(f"there is no {message[0]!r}")

    async def _submit(self, entry: bytes) -> tuple[str, int | str]:
        command = decode(entry)
        if not isinstance(command, ViewCommand) or command.program != self.name.program:
            raise BadFrame(f"{type(command).__name__} is not for a process of this program")
        if isinstance(command, StartViewWorker):
            command = as_allowed(self._controller.machine.feature_level, command)
        return answer_of(await self._controller.submit(command, SUBMIT_SECONDS))

    async def _hold(
        self, name: str, reader: str, offsets: Mapping[int, int | None], lease_ms: int
    ) -> tuple[str, int | str]:
        topic = self._controller.machine.topic(name)
        if topic is None or not all(0 <= number < len(topic.partitions) for number in offsets):
            return "unavailable", f"topic {name} has no such partitions any more"
        for one in await self._holding.hold(topic, reader, offsets, lease_ms):
            if one.lowest is not None:
                return "lost", f"HISTORY_GONE: {name}-{one.partition} is cleaned up to {one.lowest}"
            if one.error is not None:
                return "unavailable", f"{name}-{one.partition} is not held: {one.error}"
        return "done", 0

    async def _release(self, name: str, reader: str, partitions: Sequence[int]) -> tuple[str, int | str]:
        topic = self._controller.machine.topic(name)
        there = [] if topic is None else [one for one in partitions if 0 <= one < len(topic.partitions)]
        for one in await self._holding.release(topic, reader, there) if topic is not None else ():
            if one.error is not None:
                return "unavailable", f"{name}-{one.partition} is not released: {one.error}"
        return "done", 0


async def release_all(holding: Holder, machine: Controller, name: VersionName, inputs: Inputs) -> None:
    """End the holds of a version that is gone for good; those that cannot be ended now run out."""
    # A live version that ends soon after its cutover may have the holds of its filling still.
    attempts = (name.attempt, None) if name.live else (name.attempt,)
    for reader in (group_name(name.program, name.created, attempt) for attempt in attempts):
        for _, topic_id in inputs:
            topic = machine.topic_by_id(topic_id)
            if topic is not None and "compact" in CLEANUP_POLICY.of(topic.configs):
                for one in await holding.release(topic, reader, range(len(topic.partitions))):
                    if one.error is not None:
                        log.warning("hold of %s on %s-%d: %s", reader, topic.name, one.partition, one.error)


def answer_of(result: Result | Unavailable) -> tuple[str, int | str]:
    """The answer to a process for what became of its command: what is unknown is no refusal."""
    if isinstance(result, Unavailable):
        return "unavailable", f"the controller does not answer: {result.reason}"
    if isinstance(result, Refused):
        return "refused", result.message
    assert isinstance(result, int), result
    return "done", result
