"""Kafka's log cleaner and Strandline's compaction workers, with what each says of its own work."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import psutil

from tests.peers.kafka_cluster import NODES, KafkaCluster
from tests.programs.bench import gc_cluster

MIB: Final = 1 << 20
KAFKA_SETTINGS: Final = ("log.cleaner.backoff.ms=200",)
STRANDLINE_SETTINGS: Final = ("level_one.reconcile_seconds=1", "compaction.ingest_seconds=1")
"""Both look for work each second or sooner, so that a run is short. Sizes are the usual ones."""
_LOGGER: Final = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.storage.internals.log=info"
_THREAD: Final = "kafka-log-clean"
"""kafka-log-cleaner-thread-0, as far as Linux keeps a thread's name."""
_WORKER: Final = "strandline.node.compaction.worker"
_ROUND: Final = re.compile(
    r"cleaned log (?P<log>\S+) \(dirty section = .*?"
    r"(?P<read>[\d,.]+) MB of log processed.*?"
    r"Start size: [\d,.]+ MB \((?P<before>[\d,]+) messages\).*?"
    r"End size: (?P<end>[\d,.]+) MB \((?P<after>[\d,]+) messages\)",
    re.DOTALL,
)


class Round(NamedTuple):
    """One round of Kafka's cleaner, as it logs it."""

    read: float
    """Bytes, clean and dirty, each once."""
    written: float
    """Bytes."""
    removed: int
    """Records."""


class Cleaned(NamedTuple):
    """What a whole cluster's cleaning has done so far. Bytes; seconds of processor."""

    rounds: int
    read: float
    """Clean and dirty, each once."""
    written: float
    cpu: float
    """Of Kafka's cleaner threads; of our workers while they clean. The scheduler's count in both cases."""
    removed: float = 0.0
    """Records."""
    filled: float = 0.0
    """Written to local logs from level one; Kafka has no such step."""
    published: float = 0.0

    def since(self, before: Cleaned) -> Cleaned:
        """The work since then."""
        rounds, *rest = (now - then for now, then in zip(self, before, strict=True))
        return Cleaned(int(rounds), *rest)


class Cleaner(Protocol):
    """A cluster of three, under measurement."""

    name: str

    @property
    def bootstrap(self) -> str: ...
    @property
    def security(self) -> Mapping[str, str]: ...
    @property
    def pids(self) -> list[int]: ...
    def up(self) -> None: ...
    def down(self) -> None: ...
    def kill(self, node: int) -> None: ...
    def start(self, node: int) -> None: ...
    def cleaned(self) -> Cleaned: ...
    def cleaners(self) -> Cleaners: ...


class Cleaners(NamedTuple):
    """What the kernel says of the cleaners of all nodes. To ask costs the servers nothing."""

    cpu: float
    """Seconds, of Kafka's cleaner threads; of all that our compaction workers do."""
    memory: float
    """Bytes that the largest process with a cleaner has had in memory at most: a Kafka node, or a worker."""


class KafkaCleaner(KafkaCluster):
    """Apache Kafka, whose cleaner logs each of its rounds. Raises NoKafka."""

    def __init__(self, folder: Path, settings: Sequence[str] = ()) -> None:
        super().__init__(folder, [*KAFKA_SETTINGS, *settings])

    def cleaned(self) -> Cleaned:
        text = "".join(self._log(node).read_text(errors="replace") for node in NODES)
        rounds = [Round(0.0, 0.0, 0), *rounds_of(text)]
        read, written, removed = (sum(column) for column in zip(*rounds, strict=True))
        cpu = sum(map(thread_seconds, self.pids))
        return Cleaned(len(rounds) - 1, read, written, cpu, removed)

    def cleaners(self) -> Cleaners:
        pids = self.pids
        return Cleaners(sum(map(thread_seconds, pids)), max(map(most_memory, pids), default=0.0))

    def _command(self, main: str, *options: str) -> list[str]:
        return super()._command(main, _LOGGER, *options)


class StrandlineCleaner(gc_cluster.Nodes):
    """Strandline, whose nodes count what their compaction does."""

    def __init__(self, folder: Path, settings: Sequence[str] = ()) -> None:
        super().__init__(folder, [*STRANDLINE_SETTINGS, *settings])

    def cleaned(self) -> Cleaned:
        told = gc_cluster.counted(self).figures

        def figure(name: str) -> float:
            return told.get(f"strandline_compaction_{name}", 0.0)

        return Cleaned(
            int(figure("rounds_total")),
            figure("read_bytes_total clean"),
            figure("written_bytes_total clean"),
            figure("worker_cpu_seconds_total clean"),
            figure("removed_records_total"),
            figure("written_bytes_total ingest"),
            figure("written_bytes_total publish"),
        )

    def cleaners(self) -> Cleaners:
        workers = [child for pid in self.pids for child in children(pid) if _is_worker(child)]
        return Cleaners(sum(map(process_seconds, workers)), max(map(most_memory, workers), default=0.0))


def _is_worker(pid: int) -> bool:
    """Whether a process is a compaction worker; one that has ended meanwhile is none."""
    try:
        return _WORKER in psutil.Process(pid).cmdline()
    except psutil.NoSuchProcess:
        return False


def rounds_of(text: str) -> list[Round]:
    """The rounds that a cleaner logged, without those of topics of Kafka itself."""
    return [
        Round(_bytes(found["read"]), _bytes(found["end"]), _count(found["before"]) - _count(found["after"]))
        for found in _ROUND.finditer(text)
        if not found["log"].startswith("__")
    ]


def thread_seconds(pid: int) -> float:
    """Processor seconds of the cleaner's thread in a Kafka process. Raises ValueError unless there is one."""
    found = [seconds for name, seconds in _threads(pid) if name == _THREAD]
    if len(found) != 1:
        raise ValueError(f"process {pid} has {len(found)} threads of the log cleaner, not one")
    return found[0]


def process_seconds(pid: int) -> float:
    """Processor seconds of all threads that a process has."""
    return sum(seconds for _, seconds in _threads(pid))


def children(pid: int) -> list[int]:
    """Processes that a process has started. psutil looks through all of the machine's, which takes 2 ms."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
            found += map(int, (task / "children").read_text().split())
    return found


def most_memory(pid: int) -> float:
    """Bytes that a process has had in memory at most; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return float(status.partition("VmHWM:")[2].split()[0]) * 1024


def _threads(pid: int) -> Iterator[tuple[str, float]]:
    """Name of each thread, cut as Linux keeps it, and its processor seconds as the scheduler counts them."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except FileNotFoundError:
        return
    for task in tasks:
        try:
            nanoseconds = int((task / "schedstat").read_text().split()[0])
            yield (task / "comm").read_text().rstrip("\n"), nanoseconds / 1e9
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread that ended meanwhile


def _bytes(mebibytes: str) -> float:
    return float(mebibytes.replace(",", "")) * MIB


def _count(messages: str) -> int:
    return int(messages.replace(",", ""))
