"""The threads that run the units of an export, and the sum of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from strandline.snapshot.spark.export.documents import File, Manifest
from strandline.snapshot.spark.export.parquet import Job

Runner = Callable[[Sequence[Job]], Iterable[tuple[File, ...]]]
"""Runs jobs in any order and place, and gives the files of each as it ends."""


@dataclass
class Exported:
    """The sum of all rounds of one run."""

    rounds: int = 0
    resumed: bool = False
    """Whether its first round had been planned by a run that did not end it."""
    files: int = 0
    records: int = 0
    bytes: int = 0
    unfit: int = 0
    """Records that have a `value` beside columns of values."""
    lost: list[str] = field(default_factory=list)

    def add(self, manifest: Manifest) -> None:
        self.rounds += 1
        self.files += len(manifest.files)
        self.records += sum(file.records for file in manifest.files)
        self.bytes += sum(file.bytes for file in manifest.files)
        self.unfit += sum(file.unfit for file in manifest.files)
        self.lost += manifest.lost


def in_threads(count: int) -> Runner:
    """Runs jobs in this process: Arrow decodes and encodes outside of Python's lock."""

    def run(jobs: Sequence[Job]) -> Iterable[tuple[File, ...]]:
        with ThreadPoolExecutor(count) as pool:
            running = [pool.submit(job.run) for job in jobs]
            try:
                for one in running:
                    yield one.result()
            finally:
                for one in running:
                    one.cancel()

    return run
