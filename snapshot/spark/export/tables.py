"""The tables of a target: what makes a round's files visible at once, in Delta's log or by Iceberg's catalog.

The files of a round are written, and its manifest says which they are. Then the table of each topic gets them
in one commit that notes the round, so a commit that is repeated is found. A run that is killed between the
manifest and a commit leaves that to the next. See docs/export.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Final

from strandline.snapshot.spark.export.documents import (
    File,
    Manifest,
    manifest_name,
    manifest_of,
    topic_folder,
)
from strandline.snapshot.spark.export.errors import ExportError, TableFailed
from strandline.snapshot.spark.export.target import Target

COMMITS: Final = 8
"""Attempts of one commit, each after another writer's: of two runs one wins at once, and others are rare."""


class Tables(ABC):
    """The tables of one target, a topic's in the topic's folder."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def place(self, topic: str) -> str:
        """Path or URL of a topic's table."""
        return f"{self._target.url}/{topic_folder(topic)}".rstrip("/")

    def check_new(self, topics: Iterable[str]) -> None:
        """Raise ExportError if there is a table of one of these topics, where no round has happened."""
        for topic in topics:
            if self.round_of(topic) is not None:
                raise ExportError(
                    f"{self.place(topic)} is a table, and no document of an export is there",
                    "restore the documents, or export to another place",
                )

    def missing(self, manifest: Manifest) -> list[str]:
        """The topics whose tables have not got their files of a round yet; raises ExportError."""
        number = manifest.plan.round
        return [topic for topic, _ in manifest.by_topic() if (self.round_of(topic) or 0) < number]

    def commit(self, manifest: Manifest) -> None:
        """Give the files of a round to the tables that have not got them.

        Raises ExportError, StorageError.
        """
        for topic, files in manifest.by_topic():
            has = self.round_of(topic) or 0
            if has >= manifest.plan.round:
                continue
            self._check_goes_on(topic, has, manifest)
            self._check_files(topic, files, manifest)
            for _ in range(COMMITS):
                if self._committed(topic, files, manifest):
                    break
            else:
                raise TableFailed(
                    f"{self.place(topic)} has a commit of another writer again and again",
                    "run it again when they are done, it goes on where it was",
                )

    def _check_goes_on(self, topic: str, has: int, manifest: Manifest) -> None:
        """Raise ExportError if a table lacks a round before this one: it was given each in its turn."""
        for number in range(manifest.plan.round - 1, has, -1):
            name = manifest_name(number)
            earlier = manifest_of(name, self._target.get(name))
            if topic not in earlier.plan.next:
                return  # no round before has anything of the topic
            if any(one == topic for one, _ in earlier.by_topic()):
                raise ExportError(
                    f"{self.place(topic)} lacks round {number}: the table is gone, was made again or rolled "
                    "back, or --catalog is another",
                    "restore the table, name its catalog, or export to another place",
                )

    def _check_files(self, topic: str, files: list[File], manifest: Manifest) -> None:
        """Raise ExportError if files of a round are not there: a table that has them cannot be read."""
        there = set(self._target.list(topic_folder(topic)))
        gone = [file.path for file in files if file.path not in there]
        if gone:
            more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
            raise ExportError(
                f"{self._target.url}: {gone[0]}{more} of round {manifest.plan.round} is gone, "
                "and no table had it",
                f"restore it, or remove {manifest_name(manifest.plan.round)}: the next run writes it again",
            )

    def _refuse_stranger(self, topic: str, why: str) -> ExportError:
        return ExportError(
            f"the table of topic {topic!r} is not this export's: {why}",
            f"move it away, or export to another place{self._another_name}",
        )

    def _refuse_column(self, topic: str, column: str) -> ExportError:
        return ExportError(
            f"{self.place(topic)} has a column {column!r} of another type than the export's",
            "drop or rename that column, or export to another place",
        )

    _another_name = ""
    """The other things than the place that give a table another name."""

    @abstractmethod
    def round_of(self, topic: str) -> int | None:
        """The newest round that a topic's table has, 0 if none; None without a table.

        Raises ExportError, also for a table that this target's export has not made.
        """

    @abstractmethod
    def _committed(self, topic: str, files: list[File], manifest: Manifest) -> bool:
        """Whether a round is in a table, which is made; False when another writer was faster."""

    @abstractmethod
    def offsets(self, topic: str) -> Iterator[Any]:
        """Arrow batches of the columns `partition` and `offset` of a table; raises ExportError."""

    compacts = False
    """Whether `compact` does something."""

    def compact(self, topic: str) -> int:
        """Put large files in the place of small ones, in one commit; returns how many small ones there were.

        Raises ExportError.
        """
        return 0
