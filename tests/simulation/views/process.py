"""A version's process in the simulated world: production's `process.run`, over slow links that fail."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from kio.schema.errors import ErrorCode

from strandline.cluster.view_worker import fetched, process
from strandline.cluster.view_worker.fetched import Fetched, InputGone
from strandline.cluster.view_worker.node_link import (
    HoldLost,
    Known,
    NodeLink,
    NodeRefuses,
    TopicPlace,
    number_of,
)
from strandline.cluster.view_worker.store_thread import POLICY, BlockingStore
from strandline.cluster.view_worker.surroundings import Surroundings
from strandline.node.controller.client import Unavailable
from strandline.node.objectstore.retries import RetryingStore
from strandline.node.objectstore.store import Buffer
from strandline.node.views import view_process
from strandline.node.views.view_process import VersionName
from strandline.snapshot.views.json_records import Record, batch_of
from strandline.statemachine.controller.controller_commands import ViewCommand
from tests.simulation.views.fibers import Fiber
from tests.simulation.views.kafka import Entry, Place

if TYPE_CHECKING:
    from tests.simulation.views.cluster import Cluster

Value = TypeVar("Value")


class Process:
    """One process. `code` is its exit code once it has ended by itself."""

    def __init__(
        self, cluster: Cluster, name: VersionName, number: int, known: Known, inputs: view_process.Inputs
    ) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.name = name
        self.number = number
        self.known = known
        self.inputs = inputs
        self.hosted = True
        """Whether the node that is to run it does; False: another one does too."""
        self.code: int | None = None
        self.node = self.world.add_node(number)
        self.node.start(lambda _: None)
        self.files = cluster.files / str(number)
        """As on a machine of its own: it fetches what its state needs."""
        self.store = RetryingStore(
            cluster.store.client(self.node),
            POLICY,
            loop=self.node.loop,
            rng=self.node.rng("retries"),
            place="bucket",
        )
        self._told_at = 0.0
        self.hold_until = 0.0
        """A hold that it has asked for is decided then, whatever becomes of it."""
        self.status: Mapping[str, Any] = {}
        self._rng = self.world.rng(f"process {number}")
        self.fiber = Fiber(self.world, self._run)

    def __repr__(self) -> str:
        return (
            f"process {self.number} of attempt {self.name.attempt} ({'live' if self.name.live else 'next'})"
        )

    def _run(self) -> None:
        around = Surroundings(
            lambda config: cast(Consumer, SimConsumer(self, config)),
            lambda _, __, ___: SimFetcher(self),
            lambda _, name: SimProducer(self, name),
            lambda _: cast(BlockingStore, SimBlockingStore(self)),
            self.cluster.merging,
            lambda: self.world.now,
            self.sleep,
            lambda: 0,
            lambda: None,
            lambda: None,
        )
        link = cast(NodeLink, SimLink(self))
        self.code = process.run(link, self.number, self.cluster.around(around))
        self.cluster.record(f"{self!r} ends with code {self.code}")
        self.world.call_later(0.0, self.cluster.ended, self)

    @property
    def alive(self) -> bool:
        return not self.fiber.ended and not self.fiber.killed

    def kill(self) -> None:
        """Within an event: as by kill -9. What it has sent comes all the same."""
        if self.alive:
            self.cluster.record(f"{self!r} is killed")
            self.fiber.kill()
            self.node.crash("kill")
            self.world.call_later(0.0, self.cluster.ended, self)

    def sleep(self, seconds: float) -> None:
        self.fiber.wait(lambda resume: self._later(seconds, resume))

    def _later(self, seconds: float, resume: Callable[[], None]) -> None:
        self.world.call_later(seconds, resume)

    def tell(self, known: Known) -> None:
        """The node tells it the program's row, after what it told before."""
        lag = self._rng.uniform(0.0, self.cluster.lag_seconds)
        if not self.name.live:
            lag += self.cluster.deaf_seconds
        self._told_at = max(self._told_at, self.world.now + lag)
        self.world.call_at(self._told_at, self._take, known)

    def _take(self, known: Known) -> None:
        self.known = known

    def ask(self, what: str, effect: Callable[[], Value], *, ordered: bool = False) -> Value:
        """Send a request, which has its effect whatever becomes of the process, and wait for the answer.

        Raises what `effect` raises.
        """
        answer: list[Any] = []
        there = self._rng.uniform(0.001, 0.01) + self.cluster.delay(self, what)
        if what == "hold":
            self.hold_until = self.world.now + there

        def begin(resume: Callable[[], None]) -> None:
            def arrive() -> None:
                try:
                    answer.append(effect())
                except (KafkaException, InputGone, HoldLost, NodeRefuses) as error:
                    answer.append(error)
                self.cluster.record(f"{self!r}: {what}")
                back = self.world.now + self._rng.uniform(0.001, 0.01) + self.cluster.answer_delay(self, what)
                self.world.call_at(max(back, self._told_at) if ordered else back, resume)

            self.world.call_later(there, arrive)

        self.fiber.wait(begin)
        [result] = answer
        if isinstance(result, Exception):
            raise result
        return cast(Value, result)

    def store_request(self, what: str, make: Callable[[], Any]) -> Any:
        """A request to the object store."""
        extra = self.cluster.delay(self, what)
        if extra:
            self.sleep(extra)
        task = self.node.spawn(make())
        self.fiber.wait(lambda resume: task.add_done_callback(lambda _: resume()))
        self.cluster.record(f"{self!r}: {what}")
        if extra := self.cluster.answer_delay(self, what):
            self.sleep(extra)
        self.sleep(0.0)  # what a schedule does in this moment comes first
        return task.result()


class SimLink:
    """The process's end of the link to its node."""

    def __init__(self, owner: Process) -> None:
        self._owner = owner

    def started(self) -> list[Any]:
        name = self._owner.name
        owner, way = f"owner{self._owner.number}", {"bootstrap.servers": "localhost:1"}
        return ["memory:", {}, owner, str(self._owner.files), way, name.attempt, name.live, 1 << 40]

    @property
    def known(self) -> Known:
        return self._owner.known

    def submit(self, command: ViewCommand) -> int:
        owner, cluster = self._owner, self._owner.cluster
        what = f"submit {type(command).__name__}"
        lost = cluster.loses(owner, what)
        result = owner.ask(what, lambda: cluster.submitted(command, lost), ordered=not lost)
        if lost:
            owner.sleep(owner._rng.uniform(*cluster.patience))
            result = Unavailable("no answer came in time", unknown=True)
        return number_of(*view_process.answer_of(result))

    def hold(self, topic: str, reader: str, offsets: Mapping[int, int | None], lease_ms: int) -> None:
        def effect() -> None:
            for number, offset in offsets.items():
                try:
                    lowest = self._owner.cluster.held(topic, number, reader, offset)
                except KafkaException:
                    raise NodeRefuses(f"topic {topic} has no such partitions any more", late=False) from None
                if lowest is not None:
                    raise HoldLost(f"HISTORY_GONE: {topic}-{number} is cleaned up to {lowest}")

        self._owner.ask("hold", effect)

    def release(self, topic: str, reader: str, partitions: Sequence[int]) -> None:
        def effect() -> None:
            for number in partitions:
                self._owner.cluster.kafka.log(topic, number).holds.pop(reader, None)

        self._owner.ask("release", effect)

    def tell(self, status: Mapping[str, Any]) -> None:
        self._owner.status = dict(status)


class SimBlockingStore:
    """The bucket."""

    def __init__(self, owner: Process) -> None:
        self._owner = owner

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        kind = key.rpartition(".")[2]
        self._owner.store_request(f"put {kind}", lambda: self._owner.store.put(key, parts))

    def put_all(self, objects: Sequence[tuple[str, Sequence[Buffer]]]) -> None:
        for key, parts in objects:
            self.put(key, parts)

    def get(self, key: str) -> Buffer:
        found: Buffer = self._owner.store_request("get", lambda: self._owner.store.get(key))
        return found

    def list(self, prefix: str, after: str, limit: int) -> list[str]:
        found: list[str] = self._owner.store_request(
            "list", lambda: self._owner.store.list(prefix, after, limit)
        )
        return found

    def delete_many(self, keys: Sequence[str]) -> None:
        self._owner.store_request("delete", lambda: self._owner.store.delete_many(keys))


class SimConsumer:
    """Knows what its group has committed, and where a partition begins."""

    def __init__(self, owner: Process, config: Mapping[str, Any]) -> None:
        self._owner, self._kafka = owner, owner.cluster.kafka
        self._group = str(config["group.id"])

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        def effect() -> list[TopicPartition]:
            known = self._kafka.offsets[self._group]
            return [
                TopicPartition(one.topic, one.partition, *known.get((one.topic, one.partition), (-1001, "")))
                for one in places
            ]

        return self._owner.ask("committed", effect)

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        def effect() -> tuple[int, int]:
            log = self._kafka.log(place.topic, place.partition)
            self._owner.cluster.began(self._owner, (place.topic, place.partition), log.start)
            return log.start, log.end

        return self._owner.ask("watermarks", effect)

    def close(self) -> None:
        """It has nothing to let go of."""


class SimFetcher:
    """Of each partition some records at a time, and word of each end that it comes to."""

    def __init__(self, owner: Process) -> None:
        self._owner, self._kafka = owner, owner.cluster.kafka
        self._next: dict[Place, int] = {}
        self._told: dict[Place, int] = {}
        self._rng = random.Random(f"{owner.world.seed} consumer {owner.number}")

    def begin(self, cut: Mapping[Place, int]) -> None:
        self._next = dict(cut)

    def close(self) -> None:
        self._next = {}

    def fetch(self, but: Collection[Place], seconds: float) -> list[Fetched]:
        found = self._owner.ask("consume", lambda: self._fetched(but))
        if not found:
            self._owner.sleep(seconds)
            found = self._fetched(but)
        return found

    def _fetched(self, but: Collection[Place]) -> list[Fetched]:
        found: list[Fetched] = []
        committed_only = fetched.ISOLATION == fetched.READ_COMMITTED
        for place in sorted(self._next.keys() - {*but}):
            try:
                log = self._kafka.log(*place)
            except KafkaException:
                fetched.check(place, ErrorCode.unknown_topic_or_partition)
                return found
            first = self._next[place]
            if first < log.start:
                fetched.check(place, ErrorCode.offset_out_of_range)
                first = log.start
            room = self._rng.randint(1, self._owner.cluster.at_once)
            entries: list[Entry] = []
            for entry in log.readable(first, committed_only):
                if len(entries) == room:
                    break
                entries.append(entry)
            end = log.stable if committed_only else log.end
            upto = entries[-1].offset + 1 if len(entries) == room else max(first, end)
            self._next[place] = upto
            at_end = len(entries) < room
            if entries or (at_end and self._told.get(place) != upto):
                records = [
                    Record(place[1], one.offset, 1000 + one.offset, one.key, one.value) for one in entries
                ]
                found.append(Fetched(place, batch_of(records), upto, at_end))
            if at_end:
                self._told[place] = upto
        return found


class SimProducer:
    """A transactional producer: records and offsets reach the brokers before the transaction ends."""

    def __init__(self, owner: Process, name: str) -> None:
        self._owner, self._kafka = owner, owner.cluster.kafka
        self._name = name
        self._epoch = 0
        self._records: list[tuple[str, bytes, bytes | None]] = []

    def connect(self) -> None:
        """It is connected."""

    def take_over(self) -> None:
        self._epoch = self._owner.ask("init", lambda: self._kafka.begin(self._name))

    def write(self, place: TopicPlace, keys: Any, values: Any) -> None:
        rows = zip(keys.to_pylist(), values.to_pylist(), strict=True)
        self._records += [(place.name, key, value) for key, value in rows]

    def commit(self, offsets: Mapping[Place, int], metadata: str) -> None:
        records, self._records = self._records, []
        rows = [TopicPartition(*place, offset, metadata) for place, offset in offsets.items()]
        self._owner.ask(
            "write", lambda: self._kafka.write(self._name, self._epoch, records, self._name, rows)
        )
        self._owner.ask("commit", lambda: self._kafka.commit(self._name, self._epoch))
        if self._owner.cluster.loses(self._owner, "commit"):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the answer was lost"))
