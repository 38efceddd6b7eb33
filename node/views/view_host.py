"""The versions of programs that this node runs: those whose group it coordinates.

A program's offsets and transactions are its group's, so its process is where these are decided. When
leadership moves, so does the process; the one before is shut out by its transactional id, wherever it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Collection, Mapping, Set
from pathlib import Path
from typing import Any, Final, Protocol

from strandline.node.config.node_config import NodeConfig
from strandline.node.controller.client import ControllerClient
from strandline.node.controller.leaders import LeaderTable
from strandline.node.coordinator.context import CoordinatorPlaces
from strandline.node.objectstore.opening import StorePlace
from strandline.node.objectstore.store import MAX_DELETE, ObjectStore, StoreError
from strandline.node.views.view_login import Way, ways_in
from strandline.node.views.view_process import Holder, Inputs, VersionName, ViewProcess, release_all
from strandline.snapshot.extras import ExtraMissing, require
from strandline.statemachine.controller.view_state import ViewProgram, group_name
from strandline.statemachine.internal_topics import GROUPS_TOPIC, coordinator_of

log = logging.getLogger(__name__)

OBJECTS: Final = "views/"
FOLDER: Final = "views"
SWEEP_SECONDS: Final = 600.0
CATCH_UP_SECONDS: Final = 5.0
SPARE_BYTES: Final = 64 << 20
"""A node's disk without so much has no room for a filling: its log needs that."""


class Listening(Protocol):
    """The server for Kafka clients."""

    @property
    def ports(self) -> dict[str, int]: ...


class ViewContext(Protocol):
    """A node, as the host of views sees it; the broker satisfies it as it is."""

    node_id: int
    config: NodeConfig
    loop: asyncio.AbstractEventLoop
    controller: ControllerClient
    leaders: LeaderTable

    @property
    def owned(self) -> ObjectStore: ...
    @property
    def coordinators(self) -> CoordinatorPlaces: ...
    @property
    def holding(self) -> Holder: ...
    @property
    def kafka(self) -> Listening: ...


class ViewHost:
    """One per node; without a `place` that other processes see it runs nothing."""

    def __init__(self, context: ViewContext, place: StorePlace | None) -> None:
        self._context = context
        self._place = place
        self._processes: dict[VersionName, ViewProcess] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False
        self._coordinated: asyncio.Task[Any] | None = None
        self._sweeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow the controller's state and leadership."""
        if self._place is None:
            return
        self._context.controller.on_change(self._look)
        self._context.leaders.on_change(self._look)
        self._sweeping = self._context.loop.create_task(self._sweep())
        self._look()

    async def close(self) -> None:
        """End all processes."""
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for process in [*self._processes.values()]:
            await process.close()
        self._processes.clear()
        if self._ending:
            await asyncio.wait(self._ending)

    def problem(self) -> str | None:
        """The reason why this node can run no program."""
        if self._place is None:
            return "the records are in this process's memory, which no other process can read"
        if not self._context.kafka.ports:
            # A node that begins answers on its HTTP port before it listens for Kafka's clients.
            return "it does not listen for Kafka's clients yet"
        try:
            require("views")
        except ExtraMissing as missing:
            return str(missing)
        ways, unfit = self._ways()
        return None if ways else f"no listener serves the processes of views: {unfit}"

    def running(self) -> list[ViewProcess]:
        """The processes here."""
        return list(self._processes.values())

    def no_space(self, program: str, sinks: Collection[str]) -> str | None:
        """The reason why this disk has no room to fill a version with these sinks; None if it may have.

        Of a program that runs here it needs what the live version keeps, if all of that is to be kept. What
        new operators will keep is not known before.
        """
        known, needs = self._context.controller.machine.view_programs.get(program), SPARE_BYTES
        live = None if known is None or known.stopped else known.live
        if live is not None:
            there = {view.sink for view in live.views}
            if there == set(sinks):
                return None  # it is filled already
            for process in self._processes.values():
                said = process.status.get("bytes")
                if process.name.attempt == live.attempt and there <= set(sinks) and isinstance(said, int):
                    needs += said
        free = shutil.disk_usage(self._context.config.node.data).free
        if free >= needs:
            return None
        return (
            f"NO_SPACE: a version of program '{program}' needs {needs} bytes at least to be filled, and the "
            f"disk of node {self._context.node_id}'s data folder has {free}: make room there."
        )

    def _look(self) -> None:
        if self._closed:
            return
        programs = self._context.controller.machine.view_programs
        if programs and not self._there():
            return
        wanted = {name for program in programs.values() if self._leads(program) for name in versions(program)}
        for name, after in gone_live(self._processes.keys(), wanted).items():
            process = self._processes[after] = self._processes.pop(name)
            process.go_live(after)
        for name in [one for one in self._processes if one not in wanted]:
            process = self._processes.pop(name)
            task = self._context.loop.create_task(self._end(process))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        ways, place = self._ways()[0] if wanted else [], self._place
        for process in self._processes.values():
            # Another node may have come back without the listener: what serves as well as before stays.
            if ways and process.way not in ways:
                process.go_by(ways[0])
        for name in sorted(wanted - self._processes.keys()):
            if ways and place is not None:
                self._processes[name] = ViewProcess(
                    name,
                    place,
                    str(self._folder / str(name.created)),
                    ways[0],
                    self._context.controller,
                    self._context.holding,
                    loop=self._context.loop,
                    memory_limit=self._context.config.views.process_bytes,
                )
        for process in self._processes.values():
            process.tell()

    async def _end(self, process: ViewProcess) -> None:
        await process.close()
        # Looked at now: a version that went live while the process ended has the live one's holds.
        machine, name = self._context.controller.machine, process.name
        there = {one for program in machine.view_programs.values() for one in versions(program)}
        held = let_go(name, process.inputs, machine.view_programs.get(name.program), there)
        if held:
            await release_all(self._context.holding, machine, name, held)

    def _there(self) -> bool:
        """Whether the topic of groups is there; the first look that misses it has it created."""
        if self._context.controller.machine.topic(GROUPS_TOPIC) is not None:
            return True
        if self._coordinated is None or self._coordinated.done():
            self._coordinated = self._context.loop.create_task(self._context.coordinators.group_place("view"))
        return False

    def _leads(self, program: ViewProgram) -> bool:
        topic = self._context.controller.machine.topic(GROUPS_TOPIC)
        if topic is None:
            return False
        number = coordinator_of(group_name(program.name, program.created, None), len(topic.partitions))
        leader = self._context.leaders.leader_of(topic.partitions[number].group)
        return leader is not None and leader.node == self._context.node_id

    def _ways(self) -> tuple[list[Way], str]:
        context = self._context
        return ways_in(context.config, context.kafka.ports, context.controller.machine.nodes.values())

    @property
    def _folder(self) -> Path:
        """The place of processes' files: a folder for each program, in it one for each attempt."""
        return Path(self._context.config.node.data, FOLDER)

    async def _sweep(self) -> None:
        """Delete what dropped programs and ended attempts have left, at the controller's leader.

        Files go where no process of theirs runs.
        """
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            running = {(str(name.created), str(name.attempt)) for name in self._processes}
            await self._context.loop.run_in_executor(None, remove_files, self._folder, running)
            controller = self._context.controller
            if controller.leader != self._context.node_id or not await controller.catch_up(CATCH_UP_SECONDS):
                continue
            applied = controller.machine.applied_index
            known = {
                program.created: {version.attempt for version in program.versions()}
                for program in controller.machine.view_programs.values()
            }
            try:
                await self._delete(known, applied)
            except StoreError as error:
                log.warning("objects of ended versions are not deleted yet: %s", error)

    async def _delete(self, known: Mapping[int, Collection[int]], applied: int) -> None:
        after = ""
        while names := await self._context.owned.list(OBJECTS, after, MAX_DELETE):
            after = names[-1]
            gone = [one for one in names if is_left(one, known, applied)]
            if gone:
                await self._context.owned.delete_many(gone)


def is_left(name: str, known: Mapping[int, Collection[int]], applied: int) -> bool:
    """Tell whether no version needs an object; `known` has the attempts of each program.

    Both numbers are indexes of entries: where they were applied, and are not known, what they began is gone.
    """
    program, attempt = (int(part) if part.isdecimal() else 1 << 63 for part in name.split("/")[1:3])
    return program <= applied and attempt <= applied and attempt not in known.get(program, ())


def remove_files(folder: Path, running: Collection[tuple[str, str]]) -> None:
    """Remove the files of all attempts but those that run; what cannot be removed is tried again later."""
    with contextlib.suppress(OSError):
        for one in [*folder.glob("*/*")]:
            if (one.parent.name, one.name) not in running:
                shutil.rmtree(one, ignore_errors=True)
        for program in [*folder.iterdir()]:
            with contextlib.suppress(OSError):  # it has attempts that run
                program.rmdir()


def is_gone(name: VersionName, there: Collection[VersionName]) -> bool:
    """Whether a version that is not to run ends for good, with what is held for it.

    One that has gone live has holds of its own once it has begun, and then ends those of its filling. A live
    version has its holds in common with the one that takes its place.
    """
    if name.live:
        return all((one.program, one.created) != (name.program, name.created) for one in there)
    return all(one != name and one != name._replace(live=True) for one in there)


def let_go(
    name: VersionName, inputs: Inputs, program: ViewProgram | None, there: Collection[VersionName]
) -> Inputs:
    """The inputs that are held for a version and need not be once its process has ended.

    All of them where it is gone for good; those that the version in its place does not read.
    """
    if is_gone(name, there):
        return inputs
    live = None if program is None or program.created != name.created else program.live
    if not name.live or live is None or live.attempt == name.attempt:
        return ()
    return [one for one in inputs if one not in live.inputs]


def gone_live(running: Set[VersionName], wanted: Set[VersionName]) -> dict[VersionName, VersionName]:
    """Processes of versions that have gone live, and what they are from then on: they go on."""
    after = {name: name._replace(live=True) for name in running - wanted}
    return {name: live for name, live in after.items() if live in wanted - running}


def versions(program: ViewProgram) -> list[VersionName]:
    """The versions of a program that are to run."""
    wanted = []
    if program.live is not None and not program.stopped:
        wanted.append(VersionName(program.name, program.created, program.live.attempt, True))
    if program.next is not None:
        wanted.append(VersionName(program.name, program.created, program.next.attempt, False))
    return wanted
