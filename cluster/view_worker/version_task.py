"""One version of a program, kept up to date: records in, changes out, exactly once.

Its state is a function of the cut alone. So a process that begins takes the newest stored state, replays in
silence what was committed after it, and goes on where the process before it ended, whatever that was doing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

from strandline.cluster.view_worker import clients, limits, outputs
from strandline.cluster.view_worker.holds import hold, release
from strandline.cluster.view_worker.inputs import Cut, Inputs, Place
from strandline.cluster.view_worker.node_link import HoldLost, NodeLink
from strandline.cluster.view_worker.outputs import Outputs
from strandline.cluster.view_worker.state_objects import StateObjects
from strandline.cluster.view_worker.surroundings import Surroundings
from strandline.node.objectstore.opening import StorePlace
from strandline.snapshot.views import json_rows
from strandline.snapshot.views.building import circuit_of
from strandline.snapshot.views.errors import ViewError, ViewLimit
from strandline.snapshot.views.json_records import RecordReader
from strandline.snapshot.views.operator import StateManifest
from strandline.snapshot.views.sink import Changes, Phase, Sink
from strandline.snapshot.views.sql.programs import program_of
from strandline.statemachine.controller.controller_commands import StartViewWorker
from strandline.statemachine.controller.view_state import ProgramVersion, group_name
from strandline.statemachine.views.identity import digest
from strandline.statemachine.views.plan import Sink as SinkPlan
from strandline.statemachine.views.plan import Source, Upsert

log = logging.getLogger(__name__)

STEP_RECORDS: Final = 20_000
STEP_BYTES: Final = 8 << 20
"""A step takes so much, and what was read at once with the last of it."""
WAIT_SECONDS: Final = 0.05
"""For records, after which the program's row is looked at again."""
IDLE_COMMIT_SECONDS: Final = 1.0
"""A cut is committed so often where nothing is written: less is to be replayed."""
STALE_COMMIT_SECONDS: Final = 3600.0
"""And so often where nothing is read: offsets of a group without members are forgotten after days."""
FIRST_STATE_SECONDS: Final = 1.0
MOST_STATE_SECONDS: Final = 60.0
"""The time between two stored states doubles up to this: what is to be replayed takes less."""
HOLD_SECONDS: Final = 3600.0
_TELL_SECONDS: Final = 0.5
_TINY: Final = 1 << 20
"""Parts of a content of which one is next to nothing."""


class Replaced(Exception):
    """Another process, or another version, has this one's place; the process ends."""


class CannotRun(Exception):
    """The version cannot go on, for a reason that no restart mends."""


class VersionTask:
    """The state, the inputs and the outputs of a version; `phases` says when it does what."""

    def __init__(
        self,
        link: NodeLink,
        place: StorePlace,
        way: Mapping[str, str],
        attempt: int,
        worker: int,
        *,
        live: bool,
        around: Surroundings,
    ) -> None:
        """Take up one version of a program, as a Kafka client with the settings `way`.

        Raises CannotRun, Replaced, KafkaException, StoreError.
        """
        self.link = link
        self.around = around
        self.attempt = attempt
        self.worker = worker
        self.live = live
        self.status: dict[str, Any] = {"phase": "starting", "records": 0, "written": 0, "replayed": 0}
        self._told = 0.0
        self._most = STEP_RECORDS
        program = link.known.program
        self.program = program.name
        self.version = self.present_version()
        plan = program_of(self.version.text)
        self._circuit = circuit_of(plan, around.merging())
        self._plans = {name: each for name, each in plan.operators().items() if isinstance(each, SinkPlan)}
        self._topics = {view.sink: view.topic_id for view in self.version.views}
        others = {view.topic_id for view in program.live.views} if program.live and not live else set()
        self.kept = frozenset(name for name, topic in self._topics.items() if topic in others)
        """Sinks whose topics the live version writes."""
        if {digest(view.sink) for view in plan.views if view.sink} != set(self._topics):
            raise CannotRun("this release makes other operators of the program's text: apply it again")
        self._readers: dict[str, tuple[Source, RecordReader]] = {}
        keys = {
            digest(each.input): each.key for each in plan.operators().values() if isinstance(each, Upsert)
        }
        for name, each in plan.operators().items():
            if isinstance(each, Source):
                self._readers[name] = each, RecordReader(each, keys.get(name))
        group = group_name(program.name, program.created, None if live else attempt)
        self._group, self._way = group, way
        self._consumer = around.consumer(clients.consumer_settings(way, group))
        written = [link.known.topics[one] for one in self._topics.values() if one in link.known.topics]
        producer = around.producer(clients.producer_settings(way, group, limits.batch_bytes(written)))
        self._outputs = Outputs(producer, self._consumer, around)
        link.submit(StartViewWorker(program.name, attempt, live, worker))
        self._objects = StateObjects(around.store(place), program.created, attempt, worker)
        self._needed: list[frozenset[str]] = []
        self._pause_seconds = FIRST_STATE_SECONDS
        self._begin(program.created)

    # Where it begins.

    def _begin(self, created: int) -> None:
        places = self._places()
        found = outputs.committed(self._consumer, places)
        own = found if found is not None and found.attempt == self.attempt else None
        self.phase, self.part = (own.phase, own.part) if own else ("filling", 0)
        self.state = own.state if own else self.version.checkpoint
        stored: Cut = {}
        states: dict[str, StateManifest] = {}
        if self.state:
            states, stored, needed = self._objects.load(self.state)
            self._needed.append(needed)
        live = self.link.known.program.live
        other = live.attempt if live and not self.live else 0
        # What later processes write is not among them: these have shut this one out by then.
        self._leftovers = self._objects.leftovers(
            created, self.attempt, frozenset[str]().union(*self._needed), other
        )
        try:
            self._hold(stored if self.state else None)
        except HoldLost:
            if self.phase != "filling":
                raise
            # Records behind the state may be gone. Readers see nothing of this version: it is filled again.
            self.state, stored, states = "", {}, {}
            self._hold(None)
        if states:
            self._circuit.load(states)
        if self.live:
            release(self.link, self.version.inputs, group_name(self.program, created, self.attempt))
        self.inputs = Inputs(self._consumer, {place: stored.get(place) for place in places})
        self.committed: Cut = dict(own.cut) if own else dict(stored)
        self._last_commit = self._last_state = self._last_hold = self.around.monotonic()
        self._state_cut = dict(stored)
        self.tell(phase="replaying")
        while not self.inputs.at(self.committed):
            self.check()
            self.status["replayed"] += self._step(self.committed)[0]

    def _places(self) -> list[Place]:
        topics = self.link.known.topics
        places = []
        for name, topic_id in self.version.inputs:
            place = topics.get(topic_id)
            if place is None or place.name != name:
                raise CannotRun(f"TABLE_CHANGED_UNDER_VIEW: topic {name} was deleted, or is another one now")
            places += [(name, number) for number in range(place.partitions)]
        return places

    def _hold(self, cut: Cut | None) -> None:
        """Keep what a replay needs from being cleaned away; None where nothing was read yet."""
        hold(self.link, self.version.inputs, self._group, cut)
        self._last_hold = self.around.monotonic()

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

    def check(self) -> None:
        """Raise Replaced, or CannotRun for inputs that are not what they were; tell the node how it goes."""
        self.present_version()
        if self.around.monotonic() - self._told >= _TELL_SECONDS:
            if sorted(self._places()) != sorted(self.inputs.position):
                raise Replaced  # a topic has grown: the next process reads all of it
            self.tell()

    def tell(self, **changes: Any) -> None:
        """Tell the node how it goes."""
        self.status.update(changes)
        self._told = self.around.monotonic()
        skipped = sum(reader.skipped for _, reader in self._readers.values())
        cut = {f"{topic}-{number}": offset for (topic, number), offset in self.cut().items()}
        rows, size = self._circuit.size()
        self.link.tell({**self.status, "skipped": skipped, "rows": rows, "bytes": size, "cut": cut})

    def cut(self) -> Cut:
        """The offsets up to which everything is taken."""
        return dict(self.inputs.position)

    def digests(self) -> dict[str, bytes]:
        """The digest of what each operator keeps."""
        return {name: value.to_bytes(16, "big") for name, value in self._circuit.digests().items()}

    # Steps.

    def _step(self, bounds: Mapping[Place, int] | None = None) -> tuple[int, dict[str, Changes]]:
        """Take what is there, or less, where that changes too much for a transaction."""
        most = self._most
        while True:
            taken = self.inputs.take(most, STEP_BYTES, WAIT_SECONDS, bounds)
            count = sum(map(len, taken.values()))
            if not count:
                return 0, {}
            skipped = [reader.skipped for _, reader in self._readers.values()]
            deltas = {
                name: reader.rows(taken[source.topic])
                for name, (source, reader) in self._readers.items()
                if source.topic in taken
            }
            try:
                said = self._circuit.step(deltas, limits.STEP_CHANGES if count > 1 else limits.RECORD_CHANGES)
            except ViewLimit as limit:
                if count == 1:
                    [(topic, [record])] = taken.items()
                    place = f"record {record.offset} of {topic}-{record.partition}"
                    raise CannotRun(
                        f"{place} is too much for one transaction: {limit}: change the view, so that "
                        "fewer of its rows depend on one record"
                    ) from None
                self.inputs.give_back(taken)
                for (_, reader), before in zip(self._readers.values(), skipped, strict=True):
                    reader.skipped = before
                most = count // 2
            else:
                self._most = min(STEP_RECORDS, 2 * most)
                return count, said

    def go_on(self, bounds: Mapping[Place, int] | None = None) -> int:
        """Take what is there, up to bounds, and commit what follows from it; the number of records taken."""
        count, said = self._step(bounds)
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
        self.status["written"] += self._outputs.commit(self._records(said), self.inputs.position, metadata)
        self.committed = dict(self.inputs.position)
        self._last_commit = self.around.monotonic()

    def _records(self, said: Mapping[str, Changes]) -> Iterator[tuple[str, bytes, bytes | None]]:
        for name, changes in said.items():
            if name in self.kept:
                continue  # the live version writes it
            place = self.link.known.topics.get(self._topics[name])
            if place is None:
                raise CannotRun("the topic of a view is gone: drop the program and apply it again")
            for key, value in json_rows.records(self._plans[name], changes):
                if len(key) + len(value or b"") > limits.record_bytes(place):
                    view = next(view for view in self.version.views if view.sink == name)
                    raise CannotRun(limits.too_large(view, place, key, value))
                yield place.name, key, value

    def store_state(self) -> None:
        """Store the state of what is committed, and commit its name; then what was before may go."""
        if self.committed != self.inputs.position:
            self.commit()
        self.state, needed = self._objects.save(self._circuit.state(), self.inputs.position)
        self._state_cut = dict(self.inputs.position)
        self.commit()
        # Nothing is deleted before a commit has shown that this process was not shut out.
        self._objects.delete(self._leftovers)
        self._leftovers = frozenset()
        self._needed.append(needed)
        if len(self._needed) > 2:
            self._objects.delete(self._needed.pop(0) - self._needed[0] - self._needed[1])
        self._renew()
        self._last_state = self.around.monotonic()
        self._pause_seconds = min(self._pause_seconds * 2, MOST_STATE_SECONDS)
        self.status["state"] = self.state

    def shut_out_live(self) -> None:
        """End what a process of the stopped live version may still be writing; raises KafkaException.

        One that begins later writes nothing: the controller does not let it start.
        """
        program = self.link.known.program
        group = group_name(program.name, program.created, None)
        settings = clients.producer_settings(self._way, group, limits.BATCH_BYTES)
        Outputs(self.around.producer(settings), self._consumer, self.around)

    # What the sinks may say.

    def follow(self, *, all_sinks: bool) -> None:
        """Let sinks say what changes from here on: all, or only those that can never say it later."""
        for sink in self._sinks():
            if sink.phase is not Phase.FOLLOWING and (all_sinks or not self._can_dump(sink)):
                sink.move(Phase.FOLLOWING)

    def dump(self, parts: int) -> Iterator[None]:
        """Write the whole content of the sinks that were silent, part by part."""
        silent = [sink for sink in self._sinks() if sink.phase is Phase.SILENT]
        for sink in silent:
            sink.move(Phase.DUMPING)
        contents = {sink.name: self._circuit.contents(sink.name, parts) for sink in silent}
        for part in range(parts):
            said = {sink.name: sink.dump(next(contents[sink.name])) for sink in silent}
            if part >= self.part:
                self.part = part + 1
                self.commit(said)
                yield

    def _sinks(self) -> list[Sink]:
        return [each for each in self._circuit.operators.values() if isinstance(each, Sink)]

    def _can_dump(self, sink: Sink) -> bool:
        """Whether operators keep all that the sink's content is made of."""
        try:
            next(self._circuit.contents(sink.name, _TINY))
        except ViewError:
            return False
        return True
