"""One version of a program, kept up to date: records in, changes out, exactly once.

Its state is a function of the cut alone. So a process that begins takes the newest stored state, replays in
silence what was committed after it, and goes on where the process before it ended, whatever that was doing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer

from strandline.cluster.view_worker import clients, memory, outputs
from strandline.cluster.view_worker.fetched import Cut, Place
from strandline.cluster.view_worker.holds import hold, release
from strandline.cluster.view_worker.inputs import Inputs
from strandline.cluster.view_worker.laps import Laps, Rate
from strandline.cluster.view_worker.node_link import HoldLost, NodeLink
from strandline.cluster.view_worker.producing import Producer
from strandline.cluster.view_worker.sinks import Sinks
from strandline.cluster.view_worker.state_objects import StateObjects
from strandline.cluster.view_worker.steps import CannotRun, Steps
from strandline.cluster.view_worker.stored_states import StoredStates
from strandline.cluster.view_worker.surroundings import Surroundings
from strandline.node.objectstore.opening import StorePlace
from strandline.snapshot.views.building import circuit_of
from strandline.snapshot.views.operator import StateManifest
from strandline.snapshot.views.sink import Changes
from strandline.snapshot.views.sql.programs import program_of
from strandline.statemachine.controller.controller_commands import StartViewWorker
from strandline.statemachine.controller.view_state import ProgramVersion, group_name
from strandline.statemachine.views.identity import digest
from strandline.statemachine.views.plan import Sink as SinkPlan

log = logging.getLogger(__name__)

IDLE_COMMIT_SECONDS: Final = 1.0
"""A cut is committed so often where nothing is written: less is to be replayed."""
STALE_COMMIT_SECONDS: Final = 3600.0
"""And so often where nothing is read: offsets of a group without members are forgotten after days."""
FIRST_STATE_SECONDS: Final = 1.0
MOST_STATE_SECONDS: Final = 60.0
"""The time between two stored states doubles up to this: what is to be replayed takes less."""
HOLD_SECONDS: Final = 3600.0
_TELL_SECONDS: Final = 0.5


class Replaced(Exception):
    """Another process, or another version, has this one's place; the process ends."""


class VersionTask:
    """The state, the inputs and the outputs of a version; `phases` says when it does what."""

    def __init__(
        self,
        link: NodeLink,
        place: StorePlace,
        folder: Path,
        way: Mapping[str, str],
        attempt: int,
        worker: int,
        *,
        live: bool,
        around: Surroundings,
        memory_limit: int,
    ) -> None:
        """Take up one version of a program, whose files are in `folder`, as a Kafka client with the settings
        `way`; raises CannotRun, Replaced, KafkaException, StoreError, OSError."""
        self.link = link
        self.around = around
        self._start = Laps(around.monotonic)
        self._memory = memory.MemoryBound(memory_limit, around.own_memory, memory.give_back)
        self.attempt = attempt
        self.worker = worker
        self.live = live
        self.status: dict[str, Any] = {"phase": "starting", "records": 0, "written": 0, "replayed": 0}
        self._told = 0.0
        self._rate = Rate(around.monotonic)
        program = link.known.program
        self.program = program.name
        self.version = self.present_version()
        self.inputs: Inputs
        self._state_cut: Cut
        plan = program_of(self.version.text)
        objects = StateObjects(around.store(place), folder, program.created, attempt, worker)
        self._states = StoredStates(objects, program.created, attempt)
        self._circuit = circuit_of(plan, around.merging(), objects.keep)
        self.sinks = Sinks(self._circuit)
        self._plans = {name: each for name, each in plan.operators().items() if isinstance(each, SinkPlan)}
        others = {view.topic_id for view in program.live.views} if program.live and not live else set()
        self.kept = frozenset(view.topic_id for view in self.version.views if view.topic_id in others)
        """Topics that the live version writes."""
        if {digest(view.sink) for view in plan.views if view.sink} != {
            view.sink for view in self.version.views
        }:
            raise CannotRun(
                "this release makes other operators of its text: `strandline view stop` it and apply it again"
            )
        self._steps = Steps(self._circuit, plan.operators(), around.monotonic)
        self._way = way
        self._ready: tuple[Consumer, Producer] | None = None
        """Clients that wait for the place of the live version."""
        self._consumer = self._join()
        self._pause_seconds = FIRST_STATE_SECONDS
        self._begin()

    # Where it begins.

    def _join(self) -> Consumer:
        """Be the version's group and producer: the process before is shut out, and the controller knows."""
        program = self.link.known.program
        self._group = group_name(program.name, program.created, None if self.live else self.attempt)
        consumer, producer = self._ready or clients.made(self.around, self._way, self._group)
        self._ready = None
        producer.take_over()
        self._producer = producer
        program = self.link.known.program
        before = program.live_worker if self.live else program.next_worker
        self.link.submit(StartViewWorker(program.name, self.attempt, self.live, self.worker, before))
        return consumer

    def make_ready(self) -> None:
        """Make the clients that `go_live` needs, and find the group: readers wait for none of it then."""
        program = self.link.known.program
        if self._ready is None and not program.stopped:
            group = group_name(program.name, program.created, None)
            self._ready = clients.made(self.around, self._way, group)
            clients.connect(*self._ready, self.inputs.position)

    def go_live(self) -> None:
        """Go on after this version's cutover as the live one, from its cut, with what is in memory.

        Raises Replaced where another process has gone on from there already. `settle` is to follow.
        """
        self.live, self.kept = True, frozenset()
        self.version = self.present_version()
        consumer = self._join()
        if self._went_on(consumer):
            raise Replaced
        consumer.close()  # it was asked for what the group has committed, and is asked for nothing more

    def settle(self) -> None:
        """Hold what the live version would read again, and let go of what the filling held until now."""
        self._hold(self._state_cut)
        self._release_filling()
        self._states.look_again()
        self._states.remove_older()

    def _went_on(self, consumer: Consumer) -> bool:
        """Whether another process of this version has been live; it is shut out, so it goes no further."""
        found = outputs.committed(consumer, self.inputs.position)
        return found is not None and found.attempt == self.attempt

    def _begin(self) -> None:
        self._start.end("join")
        places = self._places()
        found = outputs.committed(self._consumer, places)
        own = found if found is not None and found.attempt == self.attempt else None
        self.phase, self.part = (own.phase, own.part) if own else ("filling", 0)
        self.state = own.state if own else self.version.checkpoint
        stored: Cut = {}
        states: dict[str, StateManifest] = {}
        if self.state:
            states, stored = self._states.load(self.state)
        try:
            self._hold(stored if self.state else None)
        except HoldLost:
            if self.live or self.phase != "filling":
                raise
            # Records behind the state may be gone. Readers see nothing of this version: it is filled again.
            self.state, stored, states = "", {}, {}
            self._hold(None)
        if states:
            self._circuit.load(states)
        if self.live:
            self._release_filling()
        begin = {place: stored.get(place) for place in places}
        fetcher = self.around.fetcher(self._way, self._group, dict(self.version.inputs))
        self.inputs = Inputs(self._consumer, fetcher, begin)
        self.committed: Cut = dict(own.cut) if own else dict(stored)
        self._last_commit = self._last_state = self._last_hold = self.around.monotonic()
        self._state_cut = dict(stored)
        self._start.end("state")
        self.tell(phase="replaying", start_parts=self._start.parts)
        while not self.inputs.at(self.committed):
            self.check()
            self.status["replayed"] += self._step(self.committed)[0]
        self._start.end("replay")

    def _places(self) -> list[Place]:
        topics = self.link.known.topics
        places = []
        for name, topic_id in self.version.inputs:
            place = topics.get(topic_id)
            if place is None or place.name != name:
                raise CannotRun(
                    f"TABLE_CHANGED_UNDER_VIEW: topic {name} was deleted, or is another one now: apply the "
                    "program again, which fills it from the topic that is there, or drop it"
                )
            places += [(name, number) for number in range(place.partitions)]
        return places

    def _hold(self, cut: Cut | None) -> None:
        """Keep what a replay needs from being cleaned away; None where nothing was read yet."""
        hold(self.link, self.version.inputs, self._group, cut)
        self._last_hold = self.around.monotonic()

    def _release_filling(self) -> None:
        filling = group_name(self.program, self.link.known.program.created, self.attempt)
        release(self.link, self.version.inputs, filling)

    def _renew(self) -> None:
        """Hold what a replay from the stored state needs."""
        try:
            self._hold(self._state_cut if self.state else None)
        except HoldLost:
            if self.phase != "filling":
                raise
            # The input was clean beyond this cut before the filling began. The hold of its beginning keeps
            # what it reads, and the state of its end lies above that hold.
            self._hold(None)

    # Looking at the program.

    def present_version(self) -> ProgramVersion:
        """The version as the node last told it; raises Replaced when it is gone, or has gone live."""
        program = self.link.known.program
        version = program.live if self.live else program.next
        if version is None or version.attempt != self.attempt or (self.live and program.stopped):
            raise Replaced
        return version

    def has_cut_over(self) -> bool:
        """Whether the version is live with this process's state, and not with another's that filled it."""
        live = self.link.known.program.live
        return live is not None and live.attempt == self.attempt and live.checkpoint == self.state

    def check(self) -> None:
        """Raise Replaced, or CannotRun for inputs that are not what they were; tell the node how it goes."""
        self.present_version()
        if self.around.monotonic() - self._told >= _TELL_SECONDS:
            if sorted(self._places()) != sorted(self.inputs.position):
                raise Replaced  # a topic has grown: the next process reads all of it
            self._memory.check(self._steps)
            self.tell()

    def tell(self, **changes: Any) -> None:
        """Tell the node how it goes."""
        self.status.update(changes)
        self._told = self.around.monotonic()
        cut = {f"{topic}-{number}": offset for (topic, number), offset in self.cut().items()}
        rows, size = self._circuit.size()
        self.status["rate"] = self._rate.of(self.status["records"] + self.status["replayed"])
        now = {"rows": rows, "bytes": size, "held_bytes": self._held_bytes(), "cut": cut}
        self.link.tell({**self.status, "skipped": self._steps.skipped, **now})

    def _held_bytes(self) -> int:
        """Bytes that cleaning would have, but for this version: what a replay from the stored state reads."""
        topics = self.link.known.topics
        compacted = {name for name, one in self.version.inputs if one in topics and topics[one].compacted}
        return sum(size for name, size in self.inputs.bytes.items() if name in compacted)

    def cut(self) -> Cut:
        """The offsets up to which everything is taken."""
        return dict(self.inputs.position)

    def digests(self) -> dict[str, bytes]:
        """The digest of what each operator keeps."""
        return {name: value.to_bytes(16, "big") for name, value in self._circuit.digests().items()}

    # Steps.

    def _step(self, bounds: Mapping[Place, int] | None = None) -> tuple[int, dict[str, Changes]]:
        return self._steps.step(self.inputs, bounds, brief=self.phase == "following")

    def take(self, bounds: Mapping[Place, int]) -> dict[str, Changes]:
        """Take what is there, up to bounds; what the caller is to commit."""
        count, said = self._step(bounds)
        self.status["records"] += count
        return said

    def go_on(self) -> int:
        """Take what is there and commit what follows from it; the number of records taken."""
        count, said = self._step()
        self.status["records"] += count
        silent_for = self.around.monotonic() - self._last_commit
        changed = any(each.rows.height or each.removed.height for each in said.values())
        late = silent_for > IDLE_COMMIT_SECONDS and self.inputs.position != self.committed
        if changed or late or silent_for > STALE_COMMIT_SECONDS:
            self.commit(said)
        if (
            self.around.monotonic() - self._last_state > self._pause_seconds
            and self.inputs.position != self._state_cut
        ):
            self.store_state()
        elif self.around.monotonic() - self._last_hold > HOLD_SECONDS:
            self._renew()
        return count

    def commit(self, said: Mapping[str, Changes] = {}) -> None:
        """Write changes and the cut, in one transaction."""
        metadata = outputs.metadata(self.state, self.attempt, self.phase, self.part)
        views = [view for view in self.version.views if view.topic_id not in self.kept]
        began = self.around.monotonic()
        for place, keys, values in outputs.records(views, self._plans, self.link.known.topics, said):
            self._producer.write(place, keys, values)
            self.status["written"] += len(keys)
        self._steps.wrote(self.around.monotonic() - began)
        self._producer.commit(self.inputs.position, metadata)
        self.committed = dict(self.inputs.position)
        self._last_commit = self.around.monotonic()

    def store_state(self) -> None:
        """Store the state, and commit its name; then what was before may go."""
        self.name_state()
        self._states.remove_older()
        self._renew()
        self.inputs.bytes.clear()
        self._last_state = self.around.monotonic()
        self._pause_seconds = min(self._pause_seconds * 2, MOST_STATE_SECONDS)

    def name_state(self, said: Mapping[str, Changes] = {}) -> None:
        """Store the state, and commit its name and its cut with what the last step said."""
        live = self.link.known.program.live
        other = live.attempt if live and not self.live else 0
        self.state = self._states.save(self._circuit.state(), self.inputs.position, other)
        self._state_cut = dict(self.inputs.position)
        self.commit(said)
        self.status["state"] = self.state

    def shut_out_live(self) -> None:
        """End what a process of the stopped live version may still be writing; raises KafkaException.

        One that begins later writes nothing: the controller does not let it start.
        """
        program = self.link.known.program
        group = group_name(program.name, program.created, None)
        self.around.producer(self._way, group).take_over()

    def dump(self, parts: int) -> Iterator[None]:
        """Write the whole content of the sinks that were silent, part by part."""
        for part, said in enumerate(self.sinks.dump(parts)):
            if part >= self.part:
                self.part = part + 1
                self.commit(said)
                yield
