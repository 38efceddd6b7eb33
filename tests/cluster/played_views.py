"""A version's process beside a played cluster: it dies where a test says, and another begins."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from confluent_kafka import TopicPartition

from strandline.cluster.view_worker import process
from strandline.cluster.view_worker.fetched import Cut, Fetched, Place
from strandline.cluster.view_worker.node_link import HoldLost, Known, NodeLink, NodeRefuses, TopicPlace
from strandline.cluster.view_worker.store_thread import StoreThread
from strandline.cluster.view_worker.surroundings import Surroundings
from strandline.cluster.view_worker.version_task import VersionTask
from strandline.node.objectstore.opening import StorePlace
from strandline.node.objectstore.unfinished_files import PARTIAL
from strandline.snapshot.views.json_records import Record, batch_of
from strandline.snapshot.views.sql.programs import program_of
from strandline.statemachine.controller.controller_commands import StartViewWorker, StopViews, ViewCommand
from strandline.statemachine.controller.view_state import ProgramVersion, ViewProgram, ViewTopic
from strandline.statemachine.views.identity import digest

CREATED: Final = 7
LIMIT: Final = 1_000_000
"""Bytes that a process may take."""
INPUT: Final = ("sales", b"sales-id")
WAY: Final = {"bootstrap.servers": "localhost:1"}
Written = tuple[str, bytes, bytes | None]


class Died(Exception):
    """The process is killed here."""


class PlayedCluster:
    """Inputs, groups' offsets and what was written: transactions that end take effect, others do not."""

    def __init__(self, folder: Path, versions: Mapping[int, str], live: int) -> None:
        """`versions` are texts of programs by attempts; the one that is not `live` is the next one."""
        (folder / PARTIAL).mkdir(parents=True)
        self.folder = folder
        self.files = folder.parent / "files"
        self.logs: dict[tuple[str, int], list[bytes]] = {(INPUT[0], 0): [], (INPUT[0], 1): []}
        self.offsets: dict[str, dict[tuple[str, int], tuple[int, str]]] = defaultdict(dict)
        self.transactions: list[list[Written]] = []
        self.connected: list[str] = []
        """Producers that found their coordinators before they began."""
        self.stood_back: list[bool] = []
        """What processes asked for the processor: to be served last, or (False) as any."""
        self.epochs: dict[str, int] = defaultdict(int)
        self.at_once = 3
        self.die: Callable[[str], bool] = lambda where: False
        """Whether a process dies at a place: `produced`, before a transaction ends, or `ended`, after."""
        self.held: list[tuple[str, Mapping[int, int | None]]] = []
        self.clean = 0
        """Cleaned up to here: no lower offset can be held."""
        self.released: list[tuple[str, str, list[int]]] = []
        self.limit = 1 << 20
        self.workers = 0
        self.deleted = False
        """Whether the input's topic is gone."""
        self.resident = 0
        """Bytes that a process takes."""
        self._stores: list[StoreThread] = []
        found = {number: self._version(number, text) for number, text in versions.items()}
        following = [one for number, one in found.items() if number != live]
        self.program = ViewProgram(
            "p", CREATED, found.get(live), following[0] if following else None, 0, 0, 0, None, "", ""
        )

    def _version(self, number: int, text: str) -> ProgramVersion:
        views = [view for view in program_of(text).views if view.topic and view.sink]
        topics = tuple(
            ViewTopic(
                view.name, str(view.topic), f"{number}{view.topic}".encode(), digest(cast(Any, view.sink))
            )
            for view in views
        )
        return ProgramVersion(number, number, 1, text, topics, (INPUT,), "")

    @property
    def known(self) -> Known:
        topics = {} if self.deleted else {INPUT[1]: TopicPlace(INPUT[0], 2, True, self.limit, INPUT[1])}
        for version in self.program.versions():
            topics |= {
                view.topic_id: TopicPlace(view.topic, 1, True, self.limit, view.topic_id)
                for view in version.views
            }
        return Known(self.program, topics)

    def process(self, attempt: int, *, live: bool = True) -> VersionTask:
        """Begin a process, which shuts out the one before."""
        self.workers += 1
        place = StorePlace(str(self.folder), {}, f"owner{self.workers}")
        link = cast(NodeLink, Link(self))
        return VersionTask(
            link,
            place,
            self.files,
            WAY,
            attempt,
            self.workers,
            live=live,
            around=self._around(),
            memory_limit=LIMIT,
        )

    def run(self, attempt: int, *, live: bool = True) -> tuple[int, Link]:
        """Run a process to its end; its exit code, and the node with what it was told."""
        self.workers += 1
        link = Link(self)
        link.start = [
            str(self.folder),
            {},
            f"owner{self.workers}",
            str(self.files),
            WAY,
            attempt,
            live,
            LIMIT,
        ]
        return process.run(cast(NodeLink, link), self.workers, self._around()), link

    def _around(self) -> Surroundings:
        return Surroundings(
            cast(Any, partial(PlayedConsumer, self)),
            lambda _, __, ___: PlayedFetcher(self),
            cast(Any, partial(PlayedProducer, self)),
            self._store,
            lambda: None,
            time.monotonic,
            time.sleep,
            lambda: self.resident,
            lambda: self.stood_back.append(True),
            lambda: self.stood_back.append(False),
        )

    def _store(self, place: StorePlace) -> StoreThread:
        self._stores.append(StoreThread(place))
        return self._stores[-1]

    def close(self) -> None:
        """End the threads of the processes that began."""
        for store in self._stores:
            store.close()

    def sell(self, *rows: tuple[int, str, int]) -> None:
        """Write sales: partition, shop, amount."""
        for partition, shop, amount in rows:
            self.logs[INPUT[0], partition].append(json.dumps({"shop": shop, "amount": amount}).encode())

    def written(self) -> list[Written]:
        return [one for transaction in self.transactions for one in transaction]

    def table(self, topic: str) -> dict[str, Any]:
        """The topic as its reader has it."""
        found: dict[str, Any] = {}
        for name, key, value in self.written():
            if name == topic:
                found[key.decode()] = None if value is None else json.loads(value)
        return {key: value for key, value in found.items() if value is not None}

    def totals(self, group: str) -> dict[str, Any]:
        """The sums below the cut that a group has committed, worked out plainly."""
        sums: dict[str, Any] = {}
        for place, log in self.logs.items():
            for value in log[: self.offsets[group].get(place, (0, ""))[0]]:
                row = json.loads(value)
                mine = sums.setdefault(json.dumps([row["shop"]]), {"shop": row["shop"], "n": 0, "amount": 0})
                mine["n"] += 1
                mine["amount"] += row["amount"]
        return sums

    def objects(self, attempt: int) -> set[str]:
        """Objects of an attempt's states."""
        root = self.folder / f"views/{CREATED}/{attempt}"
        return {str(path.relative_to(self.folder)) for path in root.rglob("*") if path.is_file()}


class Link:
    """The node: it accepts all that is said, but of a live version's process that has not begun no end."""

    def __init__(self, cluster: PlayedCluster) -> None:
        self._cluster = cluster
        self.said: list[ViewCommand] = []
        self.start: list[Any] = []
        self.status: Mapping[str, Any] = {}

    def started(self) -> list[Any]:
        return self.start

    @property
    def known(self) -> Known:
        return self._cluster.known

    def submit(self, command: ViewCommand) -> int:
        begun = any(isinstance(one, StartViewWorker) for one in self.said)
        self.said.append(command)
        if isinstance(command, StopViews) and not begun:
            raise NodeRefuses("It came too late: another process runs it.", late=True)
        return 1

    def hold(self, topic: str, reader: str, offsets: Mapping[int, int | None], lease_ms: int) -> None:
        if any(offset is not None and offset < self._cluster.clean for offset in offsets.values()):
            raise HoldLost(f"{topic} is cleaned up to {self._cluster.clean}")
        self._cluster.held.append((topic, offsets))

    def release(self, topic: str, reader: str, partitions: Sequence[int]) -> None:
        self._cluster.released.append((topic, reader, list(partitions)))

    def tell(self, status: Mapping[str, Any]) -> None:
        self.status = {**self.status, **status}


class PlayedConsumer:
    """Knows what its group has committed, and where a partition begins."""

    def __init__(self, cluster: PlayedCluster, config: Mapping[str, Any]) -> None:
        self.cluster, self.group = cluster, config["group.id"]

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        known = self.cluster.offsets[self.group]
        return [
            TopicPartition(one.topic, one.partition, *known.get((one.topic, one.partition), (-1001, "")))
            for one in places
        ]

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        return 0, len(self.cluster.logs[place.topic, place.partition])

    def close(self) -> None:
        """It has nothing to let go of."""


class PlayedFetcher:
    """Gives some records of each partition at a time, and tells of each end it comes to."""

    def __init__(self, cluster: PlayedCluster) -> None:
        self.cluster = cluster
        self._next: Cut = {}
        self._told: Cut = {}

    def begin(self, cut: Mapping[Place, int]) -> None:
        self._next = dict(cut)

    def fetch(self, but: Collection[Place], seconds: float) -> list[Fetched]:
        found = []
        for place in sorted(self._next.keys() - {*but}):
            log, first = self.cluster.logs[place], self._next[place]
            last = min(len(log), first + self.cluster.at_once)
            self._next[place] = last
            if last > first or self._told.get(place) != first:
                records = [Record(place[1], at, 1000, None, log[at]) for at in range(first, last)]
                found.append(Fetched(place, batch_of(records), last, last == first))
            if last == first:
                self._told[place] = first
        return found

    def close(self) -> None:
        self._next = {}


class PlayedProducer:
    """Transactions that take effect at their end, if no later process has begun."""

    def __init__(self, cluster: PlayedCluster, way: Mapping[str, str], name: str) -> None:
        self._cluster, self._name = cluster, name
        self._epoch = 0
        self._records: list[Written] = []

    def connect(self) -> None:
        self._cluster.connected.append(self._name)

    def take_over(self) -> None:
        self._cluster.epochs[self._name] += 1
        self._epoch = self._cluster.epochs[self._name]

    def write(self, place: TopicPlace, keys: Any, values: Any) -> None:
        rows = zip(keys.to_pylist(), values.to_pylist(), strict=True)
        self._records += [(place.name, key, value) for key, value in rows]

    def commit(self, offsets: Mapping[Place, int], metadata: str) -> None:
        if self._epoch != self._cluster.epochs[self._name] or self._cluster.die("produced"):
            raise Died
        self._cluster.transactions.append(self._records)
        self._records = []
        for place, offset in offsets.items():
            self._cluster.offsets[self._name][place] = offset, metadata
        if self._cluster.die("ended"):
            raise Died
