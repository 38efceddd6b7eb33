"""Kafka's log cleaner and Strandline's compaction workers, with what each says of its own work."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from tests.peers.kafka_cluster import NODES, KafkaCluster
from tests.programs.bench import gc_cluster

MIB: Final = 1 << 20
KAFKA_SETTINGS: Final = ("log.cleaner.backoff.ms=200",)
STRANDLINE_SETTINGS: Final = ("level_one.reconcile_seconds=1", "compaction.ingest_seconds=1")
"""Both look for work each second or sooner, so that a run is short. Sizes are the usual ones."""
_LOGGER: Final = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.storage.internals.log=info"
_THREAD: Final = "kafka-log-clean"
"""kafka-log-cleaner-thread-0, as far as Linux keeps a thread's name."""
_ROUND: Final = re.compile(
    r"cleaned log (?P<log>\S+) \(dirty section = .*?"
    r"(?P<read>[\d,.]+) MB of log processed.*?End size: (?P<end>[\d,.]+) MB",
    re.DOTALL,
)


class Cleaned(NamedTuple):
    """What a whole cluster's cleaning has done so far. Bytes; seconds of processor."""

    rounds: int
    read: float
    """Clean and dirty, each once."""
    written: float
    cpu: float
    """Of Kafka's cleaner threads; of our workers, filling and publishing included."""
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
    def pids(self) -> list[int]: ...
    def up(self) -> None: ...
    def down(self) -> None: ...
    def kill(self, node: int) -> None: ...
    def start(self, node: int) -> None: ...
    def cleaned(self) -> Cleaned: ...


class KafkaCleaner(KafkaCluster):
    """Apache Kafka, whose cleaner logs each of its rounds. Raises NoKafka."""

    def __init__(self, folder: Path, settings: Sequence[str] = ()) -> None:
        super().__init__(folder, [*KAFKA_SETTINGS, *settings])

    def cleaned(self) -> Cleaned:
        text = "".join(self._log(node).read_text(errors="replace") for node in NODES)
        rounds = rounds_of(text)
        cpu = sum(thread_seconds(pid) for pid in self.pids)
        return Cleaned(len(rounds), sum(read for read, _ in rounds), sum(end for _, end in rounds), cpu)

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
            figure("worker_cpu_seconds_total"),
            figure("written_bytes_total ingest"),
            figure("written_bytes_total publish"),
        )


def rounds_of(text: str) -> list[tuple[float, float]]:
    """Bytes read and left of each round that a cleaner logged, without those of topics of Kafka itself."""
    return [
        (_bytes(found["read"]), _bytes(found["end"]))
        for found in _ROUND.finditer(text)
        if not found["log"].startswith("__")
    ]


def thread_seconds(pid: int) -> float:
    """Processor seconds of the cleaner's thread in a Kafka process. Raises ValueError unless there is one."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread that ended meanwhile
        if name == _THREAD:
            user, system = rest.split()[11:13]
            found.append((int(user) + int(system)) / os.sysconf("SC_CLK_TCK"))
    if len(found) != 1:
        raise ValueError(f"process {pid} has {len(found)} threads of the log cleaner, not one")
    return found[0]


def _bytes(mebibytes: str) -> float:
    return float(mebibytes.replace(",", "")) * MIB
