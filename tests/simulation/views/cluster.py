"""The world of one seed: controller, host of processes, log, store; the rules that hold at every moment."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import tempfile
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Final

import msgpack

from strandline.cluster.view_worker.node_link import Known, TopicPlace
from strandline.cluster.view_worker.surroundings import Surroundings
from strandline.node.compaction.holding import PartitionHold
from strandline.node.views import view_host
from strandline.node.views.view_process import SUBMIT_SECONDS, Inputs, VersionName, release_all
from strandline.statemachine.controller.controller_commands import FEATURE_LEVEL, Command
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.controller.topic_config import CLEANUP_POLICY, MAX_MESSAGE_BYTES
from strandline.statemachine.controller.view_state import (
    ViewProgram,
    ViewTopic,
    is_hidden,
    programs_from,
    rows,
)
from tests.simulation.report import Finding
from tests.simulation.store import SimStore
from tests.simulation.views import programs
from tests.simulation.views.kafka import Entry, Kafka, PartitionLog, Place, Transaction
from tests.simulation.views.process import Process
from tests.simulation.views.programs import ITEMS, SALES, View, Wanted
from tests.simulation.world import World
from tests.statemachine.controller_harness import Log

PROGRAM: Final = "p"
AGAIN_SECONDS: Final = 0.5
Cut = dict[Place, int]


class Cluster:
    """What the processes have around them. A schedule bends it by `delays` and `losses`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.findings: list[Finding] = []
        self.outcomes: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.controller = Log(nodes=3, level=FEATURE_LEVEL)
        self.machine = self.controller.machine
        self.kafka = Kafka(self.machine, lambda: world.now)
        self.kafka.committed = self._committed
        self.store = SimStore(world)
        self.files = Path(tempfile.mkdtemp(prefix="strandline-sim-"))
        weakref.finalize(self, shutil.rmtree, self.files, ignore_errors=True)
        self.host = world.add_node(1000)
        self.host.start(lambda _: None)
        self.processes: list[Process] = []
        self._hosted: dict[VersionName, Process] = {}
        """The newest process of each version that the host runs."""
        self.at_once = 5
        self.lag_seconds = 0.02
        self.delays: list[Callable[[Process, str], float]] = []
        self.answer_delays: list[Callable[[Process, str], float]] = []
        self.losses: list[Callable[[Process, str], bool]] = []
        self.around: Callable[[Surroundings], Surroundings] = lambda around: around
        self.merging: Callable[[], Executor | None] = lambda: None
        self.repeated: dict[str, Callable[[], float]] = {}
        """Seconds after which a command of some kind comes once more; below zero, it does not."""
        self.may_end = False
        """Whether an attempt may end without a cutover."""
        self.may_stop = False
        """Whether the live version may stop for good."""
        self.patience = (1.0, SUBMIT_SECONDS)
        """Seconds, at least and at most, after which a node gives up on an answer of the controller."""
        self.deaf_seconds = 0.0
        """How much later a node tells its processes of the program that are not live."""
        self._numbers = itertools.count(1)
        self._topics = itertools.count(1000)
        self._hosting = True
        self.tables: dict[bytes, dict[str, str | None]] = defaultdict(dict)
        """What a reader of committed records has of each view's topic."""
        self.views: dict[str, View] = {}
        """What a sink's topic is to have, by digest."""
        self.first: dict[int, Cut] = defaultdict(dict)
        """Where each attempt began to read."""
        self.followed: set[int] = set()
        """Attempts that have written the whole content."""
        self.live_cut: Cut = {}
        """The cut at which all topics of the live version are."""
        self._last: dict[str, Cut] = defaultdict(dict)
        self._rng = world.rng("cluster")
        for name, partitions, policy in ((SALES, 2, "delete"), (ITEMS, 2, "compact")):
            configs = (("cleanup.policy", policy),)
            made = self.controller.creation(next(self._topics), name, partitions=partitions, configs=configs)
            self.controller.topic(made)

    def record(self, text: str) -> None:
        self.world.record(0, text)

    def broken(self, check: str, text: str) -> None:
        """A rule is broken."""
        self.findings.append(Finding(check, self.world.now, text))

    # The controller.

    @property
    def program(self) -> ViewProgram:
        return self.machine.view_programs[PROGRAM]

    def apply(self, wanted: Wanted) -> int | None:
        """The operator applies a program; the attempt, None if it is refused."""
        self.views.update(wanted.tables)
        made = programs.command(PROGRAM, wanted.text, lambda: next(self._topics), self.controller.index)
        result = self.submitted(made, lost=False)
        return result if isinstance(result, int) else None

    def submitted(self, command: Command, lost: bool) -> Any:
        """A command comes to the controller; `lost`: sometimes it never comes."""
        if lost and self._rng.random() < 0.5:
            return None
        before = self.machine.view_programs.get(PROGRAM)
        names = {topic.name: topic.topic_id for topic in self.machine.topics}
        result = self.controller.do(command)
        self.kafka.forget_late(names, self.world.now + self._rng.uniform(0.0, 10 * self.lag_seconds))
        self.record(f"controller: {type(command).__name__} -> {result}")
        after = self.machine.view_programs.get(PROGRAM)
        if after is not None and after.live is not None:
            if before is None or before.live is None or before.live.attempt != after.live.attempt:
                self._cut_over(after)
            self._look_at_names(after)
        if after is not before:
            self._changed()
        again = self.repeated.get(type(command).__name__, lambda: -1.0)()
        if again >= 0:
            self.world.call_later(again, self.again, command)
        return result

    def again(self, command: Command) -> None:
        """A command that was sent before comes once more."""
        self.faults["late or twice"] += 1
        repeated, self.repeated = self.repeated, {}
        self.submitted(command, lost=False)
        self.repeated = repeated

    def _known(self) -> Known:
        [program] = programs_from(msgpack.unpackb(msgpack.packb(rows({PROGRAM: self.program})))).values()
        ids = {one for version in program.versions() for _, one in version.inputs}
        ids |= {view.topic_id for version in program.versions() for view in version.views}
        topics = {}
        for one in ids:
            topic = self.machine.topic_by_id(one)
            if topic is not None:
                compacted = "compact" in CLEANUP_POLICY.of(topic.configs)
                topics[one] = TopicPlace(
                    topic.name, len(topic.partitions), compacted, MAX_MESSAGE_BYTES.of(topic.configs), one
                )
        return Known(program, topics)

    def _changed(self) -> None:
        if PROGRAM in self.machine.view_programs:
            for process in self.processes:
                if process.alive and process.name.created == self.program.created:
                    process.tell(self._known())
        self.world.call_later(self._rng.uniform(0.0, self.lag_seconds), self.look)

    # The host of processes: what `ViewHost._look` does, without processes of an operating system.

    def look(self) -> None:
        """Begin the processes that are to run, and end those that are not."""
        if not self._hosting:
            return
        program = self.machine.view_programs.get(PROGRAM)
        wanted = set(view_host.versions(program)) if program else set[VersionName]()
        running = {process.name for process in self.processes if process.alive and process.hosted}
        for name, after in view_host.gone_live(running, wanted).items():
            for process in self.processes:
                if process.hosted and process.name == name:
                    process.name = after
            self._hosted[after] = self._hosted.pop(name)
        running = {process.name for process in self.processes if process.alive and process.hosted}
        for process in [*self.processes]:
            if process.hosted and process.name not in wanted:
                process.kill()
        # Also of a version whose process has just ended by itself.
        for name in [one for one in self._hosted if one not in wanted]:
            process = self._hosted.pop(name)
            if held := view_host.let_go(name, process.inputs, program, wanted):
                self.world.call_at(max(self.world.now, process.hold_until), self._release_all, name, held)
        for name in sorted(wanted - running):
            self.begin(name)

    def _release_all(self, name: VersionName, inputs: Inputs) -> None:
        self.host.spawn(release_all(self, self.machine, name, inputs))

    def begin(self, name: VersionName) -> Process:
        [version] = [one for one in self.program.versions() if one.attempt == name.attempt]
        process = Process(self, name, next(self._numbers), self._known(), version.inputs)
        self.processes.append(process)
        self._hosted[name] = process
        self.outcomes["processes"] += 1
        self.record(f"{process!r} begins")
        return process

    def ended(self, process: Process) -> None:
        """A process is no more; if it is to run there is another soon."""
        if process in self.processes:
            self.processes.remove(process)
            self.world.call_later(AGAIN_SECONDS, self.look)

    def move(self) -> list[Process]:
        """Another node hosts: it begins processes of its own; the old ones, given back, do not know yet."""
        self.faults["moved"] += 1
        old = [process for process in self.processes if process.hosted]
        for process in old:
            process.hosted = False
        self.look()
        return old

    def stop_hosting(self) -> None:
        self._hosting = False

    def host_again(self) -> None:
        self._hosting = True
        self.look()

    def running(self, *, live: bool) -> Process | None:
        """The process that the host runs now."""
        for process in self.processes:
            if process.hosted and process.alive and process.name.live == live:
                return process
        return None

    # Faults.

    def delay(self, process: Process, what: str) -> float:
        """Further seconds on the way of a request."""
        return sum(one(process, what) for one in self.delays)

    def answer_delay(self, process: Process, what: str) -> float:
        return sum(one(process, what) for one in self.answer_delays)

    def loses(self, process: Process, what: str) -> bool:
        """Whether the answer to a request is lost."""
        lost = sum(one(process, what) for one in self.losses) > 0
        self.faults["lost answer"] += lost
        return lost

    def lose_next(self, rng: random.Random) -> None:
        """The next answer to a process is lost."""
        left = [True]
        self.losses.append(lambda process, what: bool(left and rng.random() < 0.5 and left.pop()))

    def sweep(self) -> None:
        """Delete objects of programs and attempts that are gone, as the controller's leader does."""
        known = {
            program.created: {version.attempt for version in program.versions()}
            for program in self.machine.view_programs.values()
        }
        names = self.store.keys(view_host.OBJECTS)
        gone = [one for one in names if view_host.is_left(one, known, self.controller.index)]
        if gone:
            self.store.delete(gone)

    async def hold(self, topic: Topic, reader: str, offsets: Any, lease_ms: int) -> list[PartitionHold]:
        """No node asks for a hold but for a process."""
        raise NotImplementedError

    async def release(self, topic: Topic, reader: str, partitions: Sequence[int]) -> list[PartitionHold]:
        """A reader's holds end."""
        for number in partitions:
            self.kafka.logs[topic.topic_id, number].holds.pop(reader, None)
        return []

    def held(self, topic: str, partition: int, reader: str, offset: int | None) -> int | None:
        """A reader's hold; gives what it could have if it is lost."""
        log = self.kafka.log(topic, partition)
        return log.hold(reader, offset)

    def began(self, process: Process, place: Place, first: int) -> None:
        self.first[process.name.attempt][place] = first

    def inputs(self) -> Iterator[tuple[Place, PartitionLog]]:
        for name in (SALES, ITEMS):
            topic = self.machine.topic(name)
            for partition in range(len(topic.partitions) if topic else 0):
                yield (name, partition), self.kafka.log(name, partition)

    # The rules.

    def expected(self, view: ViewTopic, cut: Mapping[Place, int], attempt: int) -> dict[str, Any]:
        """A view's table at a cut, worked out from the records."""
        below: dict[Place, list[Entry]] = {}
        for place, log in self.inputs():
            first = self.first[attempt].get(place, 0) if place[0] == SALES else 0
            below[place] = [one for one in log.history[first : cut.get(place, 0)] if one.committed]
        return self.views[view.sink].table(below)

    def table(self, topic: bytes) -> dict[str, Any]:
        return {key: json.loads(value) for key, value in self.tables[topic].items() if value is not None}

    def _committed(self, one: Transaction) -> None:
        told = [metadata for _, _, _, metadata in one.offsets]
        _, attempt, phase, _ = json.loads(told[0])
        live = self.machine.view_programs.get(PROGRAM)
        if live is None:
            return
        self.outcomes["transactions"] += 1
        for topic, key, value in one.records:
            new = None if value is None else value.decode()
            if self.tables[topic].get(key.decode()) == new:
                self.broken("told twice", f"{one.owner} wrote {key!r} = {new} again")
            self.tables[topic][key.decode()] = new
            self.outcomes["changes"] += 1
        cut = {(topic, partition): offset for topic, partition, offset, _ in one.offsets}
        for place, offset in cut.items():
            before = self._last[one.group].get(place, 0)
            if offset < before:
                self.broken("offsets go back", f"{one.group} commits {place} at {offset} after {before}")
            self._last[one.group][place] = max(offset, before)
        if one.group == f"view.{PROGRAM}.{live.created}":
            if live.live is None or attempt != live.live.attempt:
                self.broken("after its end", f"attempt {attempt} commits, and is not live")
                return
            self.live_cut = cut
            self._look(live.live.views, cut, attempt)
            self._look_at_names(live)
        elif live.next is not None and live.next.attempt == attempt and phase == "following":
            self.followed.add(attempt)
            kept = {view.topic_id for view in live.live.views} if live.live else set()
            self._look([view for view in live.next.views if view.topic_id not in kept], cut, attempt)

    def _look(self, views: Any, cut: Cut, attempt: int) -> None:
        for view in views:
            self.outcomes["compared"] += 1
            here, there = self.table(view.topic_id), self.expected(view, cut, attempt)
            if here != there:
                wrong = {key: (here.get(key), there.get(key)) for key in here.keys() | there.keys()}
                wrong = {key: pair for key, pair in wrong.items() if pair[0] != pair[1]}
                shown = sorted(wrong.items())[:3]
                self.broken(
                    "equal to its SQL", f"{view.view} at {sorted(cut.items())} (has, should): {shown}"
                )

    def _cut_over(self, program: ViewProgram) -> None:
        assert program.live is not None
        self.outcomes["cutovers"] += 1
        body = self.store.objects.get(program.live.checkpoint)
        if body is None:
            self.broken("state is there", f"{program.live.checkpoint} is named by the cutover")
            return
        _, at, _ = msgpack.unpackb(body[:-32])
        self.live_cut = {(topic, partition): offset for topic, partition, offset in at}
        self._look(program.live.views, self.live_cut, program.live.attempt)

    def _look_at_names(self, program: ViewProgram) -> None:
        """Each view's name leads to its topic, and no hidden name to a topic of none."""
        assert program.live is not None
        for view in program.live.views:
            topic = self.machine.topic(view.topic)
            if topic is None or topic.topic_id != view.topic_id:
                self.broken("names", f"{view.topic} is not the topic of view {view.view}")
        self.look_for_remains()

    def look_for_remains(self) -> None:
        """Whether there are topics of programs, or attempts, that are gone."""
        program = self.machine.view_programs.get(PROGRAM)
        owned = (
            {view.topic_id for version in program.versions() for view in version.views} if program else set()
        )
        for topic in self.machine.topics:
            if topic.topic_id not in owned and topic.name not in (SALES, ITEMS):
                self.broken("nothing is left", f"topic {topic.name} belongs to no version")
            if is_hidden(topic.name) and (program is None or program.next is None):
                self.broken("nothing is left", f"topic {topic.name} has a hidden name, and nothing is filled")
