"""A cluster's published states, the newest or a restore point's: its topics, and each group's state.

A checkpoint's document, and the tails behind it (tails.py). A reader that looks again and again, as a stream
does, keeps what it has decoded: a document never changes under its name, so only newer ones are read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Any, Final, TypeVar

from strandline.snapshot.document import SnapshotDamaged, SnapshotDocument, SnapshotTooNew, decode
from strandline.snapshot.names import PREFIX, SnapshotName, group_prefix, parse_name
from strandline.snapshot.restore_point import (
    RestorePoint,
    RestorePointDamaged,
    decode_point,
    point_name,
    point_number,
    points_prefix,
)
from strandline.snapshot.spark.options import ReadOptions, SourceError
from strandline.snapshot.spark.tails import Tails
from strandline.snapshot.storage import ObjectMissing, Storage
from strandline.snapshot.tail_document import PREFIX as TAILS_PREFIX
from strandline.statemachine.controller import controller_snapshot
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP, ControllerState, Topic
from strandline.statemachine.controller.view_state import is_hidden
from strandline.statemachine.internal_topics import INTERNAL_TOPICS

LISTINGS: Final = 3
"""Listings of a group's checkpoints before giving up, if the newest is always gone before it is read."""

_SHOWN: Final = 10
"""Most numbers of restore points that an error names."""

PUBLISHES: Final = (
    "nodes publish what is new within publish.seconds (5 s by default), and where that is 0 with "
    "`strandline checkpoint`"
)
"""Cure of what is not published yet."""

Loaded = TypeVar("Loaded")
Place = tuple[Topic, int]


def newest_document(storage: Storage, cluster: str, group: int) -> tuple[str, SnapshotDocument] | None:
    """Name and content of a group's newest published checkpoint, from any replica whose document is whole.

    Raises SourceError when none is, or all are of a newer format, and StorageError.
    """
    for _ in range(LISTINGS - 1):
        try:
            return _first_whole(storage, _newest_names(storage, cluster, group))
        except ObjectMissing:
            continue  # newer ones have taken its place
    return _first_whole(storage, _newest_names(storage, cluster, group))


def _newest_names(storage: Storage, cluster: str, group: int) -> list[str]:
    """Names of the documents of a group's newest checkpoint, one of each replica that has published it."""
    published = _published(storage, cluster, group)
    newest = max((index for index, _ in published), default=0)
    return [key for index, key in published if index == newest]


def _published(storage: Storage, cluster: str, group: int) -> list[tuple[int, str]]:
    """Log indexes and names of a group's documents."""
    published = []
    for key in storage.list(group_prefix(cluster, group)):
        with suppress(ValueError):  # something else that was put there
            name = parse_name(key)
            if isinstance(name, SnapshotName):
                published.append((name.log_index, key))
    return published


def _first_whole(storage: Storage, names: list[str]) -> tuple[str, SnapshotDocument] | None:
    problem = None
    for key in names:
        try:
            return key, decode(storage.get(key))
        except (SnapshotDamaged, SnapshotTooNew) as error:
            problem = problem or SourceError(f"{key}: {error}")
    if problem is not None:
        raise problem
    return None


class NewestCheckpoints:
    """The newest states of one cluster: of checkpoints, and of tails where there are any."""

    def __init__(self, storage: Storage, cluster: str | None) -> None:
        """An id that no cluster can have raises SourceError."""
        if cluster is not None:
            try:
                group_prefix(cluster, CONTROLLER_GROUP)
            except ValueError as error:
                raise SourceError(str(error)) from error
        self._storage = storage
        self._cluster = cluster
        self._tails: Tails | None = None
        self._state: ControllerState | None = None
        """The controller's newest state that was seen."""
        self._looked_up: set[int] = set()
        """Groups whose checkpoints were listed since the last look at everything."""
        self._read: dict[int, str] = {}
        """Name of each group's newest checkpoint's document that was read."""
        self._kept: dict[int, tuple[tuple[str, int], Any]] = {}
        """Each group's newest document, by name and log index, and the value that it was loaded as."""

    def look(self, *, whole: bool) -> frozenset[int]:
        """Read the tails that are new; gives the groups that they tell of, of those asked for before.

        A group that tails tell of is not looked for among checkpoints again, unless `whole`: then each is.
        Raises SourceError, StorageError.
        """
        if whole:
            self._looked_up.clear()
        if self._tails is None:
            self._tails = Tails(self._storage, self.cluster)
            self._tails.follow((CONTROLLER_GROUP,))
        return self._tails.read(whole=whole)

    def renewed(self, seconds: float) -> bool:
        """Look at everything again after this time; False, at once, where nothing can be newer.

        Raises SourceError, StorageError.
        """
        time.sleep(seconds)
        self.look(whole=True)
        return True

    @property
    def has_tails(self) -> bool:
        """Whether the cluster's nodes published tails, as of the last look."""
        return self._tails is not None and self._tails.there

    def follow(self, groups: Collection[int]) -> None:
        """Let `look` tell of these groups, too. Raises SourceError, StorageError."""
        assert self._tails is not None, "the controller, which comes first, has said which groups there are"
        self._tails.follow(groups)

    def controller(self) -> ControllerState:
        """The controller's state; raises SourceError if none is published, and StorageError."""

        def load(key: str, document: SnapshotDocument) -> ControllerState:
            try:
                return controller_snapshot.load(document.state)
            except ValueError as error:
                raise SourceError(f"{key}: {error}") from error

        if self._tails is None:
            self.look(whole=True)
        state = self.of_group(CONTROLLER_GROUP, load)
        if state is None:
            raise SourceError(
                f"{self._storage.url}: nothing of cluster {self.cluster} is published there: check the url "
                f"and the id; {PUBLISHES}"
            )
        if state is not self._state:
            self._state = state
            self._forget_deleted(state)
        return state

    def _forget_deleted(self, state: ControllerState) -> None:
        groups = {partition.group for topic in state.topics.values() for partition in topic.partitions}
        groups.add(CONTROLLER_GROUP)
        for group in (self._kept.keys() | self._read.keys()) - groups:
            self._kept.pop(group, None)
            self._read.pop(group, None)
        if self._tails is not None:
            self._tails.keep(groups)

    def of_group(self, group: int, load: Callable[[str, SnapshotDocument], Loaded]) -> Loaded | None:
        """Return what `load` makes of a followed group's newest state and its name, or None if there is none.

        Raises SourceError if no replica's is whole, StorageError, and what `load` raises. Different groups
        may be asked for by several threads.
        """
        assert self._tails is not None, "the controller comes first"
        base = None
        if group not in self._looked_up or not self._tails.tell_of(group):
            self._looked_up.add(group)
            known = self._tails.has_state(group) and self._read.get(group)
            if not known or known not in _newest_names(self._storage, self.cluster, group):
                base = newest_document(self._storage, self.cluster, group)
        found = self._tails.state(group, base)
        if base is not None:
            self._read[group] = base[0]
        if found is None:
            return None
        name = found[0], found[1].index
        kept = self._kept.get(group)
        if kept is None or kept[0] != name:
            self._kept[group] = kept = name, load(*found)
        loaded: Loaded = kept[1]
        return loaded

    @property
    def cluster(self) -> str:
        """The cluster's id; raises SourceError if it is not given and there is not one alone."""
        if self._cluster is None:
            self._cluster = _only_cluster(self._storage)
        return self._cluster


class PointCheckpoints(NewestCheckpoints):
    """The checkpoints that a restore point names, in the place of the newest ones."""

    def __init__(self, storage: Storage, point: RestorePoint) -> None:
        super().__init__(storage, point.cluster)
        self._number = point.number
        self._index = {one.group: one.log_index for one in point.groups}

    def look(self, *, whole: bool) -> frozenset[int]:
        """There is never anything new."""
        return frozenset()

    def renewed(self, seconds: float) -> bool:
        """See `look`."""
        return False

    def follow(self, groups: Collection[int]) -> None:
        """See `look`."""

    def of_group(self, group: int, load: Callable[[str, SnapshotDocument], Loaded]) -> Loaded | None:
        """Return what `load` makes of a group's document and its name; None for a group that the point lacks.

        Raises SourceError if no replica's is there and whole, StorageError, and what `load` raises.
        """
        if group not in self._index:
            return None
        published = _published(self._storage, self.cluster, group)
        try:
            names = [key for index, key in published if index == self._index[group]]
            found = _first_whole(self._storage, names)
        except ObjectMissing:
            found = None
        if found is None:
            raise SourceError(
                f"{self._storage.url}: checkpoint {self._number} names a document of group {group} that is "
                "gone: read a later checkpoint"
            )
        return load(*found)


def wanted_checkpoints(storage: Storage, options: ReadOptions) -> NewestCheckpoints:
    """The newest checkpoints, or those that the options have by number; raises SourceError, StorageError."""
    newest = NewestCheckpoints(storage, options.cluster)
    if options.checkpoint is None:
        return newest
    return PointCheckpoints(storage, _point(storage, newest.cluster, options.checkpoint))


def _point(storage: Storage, cluster: str, number: int) -> RestorePoint:
    try:
        return decode_point(storage.get(point_name(cluster, number)))
    except RestorePointDamaged as error:
        raise SourceError(f"checkpoint {number}: {error}") from error
    except ObjectMissing:
        names = storage.list(points_prefix(cluster))
        there = [str(found) for name in names if (found := point_number(name)) is not None]
        raise SourceError(
            f"{storage.url}: there is no checkpoint {number} of all topics of cluster {cluster}, but "
            f"{', '.join(there[-_SHOWN:]) or 'none'}: `strandline checkpoint` takes one and tells its number"
        ) from None


def _only_cluster(storage: Storage) -> str:
    found = sorted({*storage.folders(PREFIX), *storage.folders(TAILS_PREFIX)})
    if not found:
        raise SourceError(
            f"{storage.url}: no cluster has published anything there: check the url; {PUBLISHES}"
        )
    if len(found) > 1:
        names = ", ".join(found)
        raise SourceError(
            f"{storage.url} holds several clusters ({names}): say which by the option 'cluster'"
        )
    return found[0]


def check_wanted(state: ControllerState, options: ReadOptions) -> None:
    """Raise SourceError for a topic or partition that is wanted by name and is not there."""
    for name, chosen in options.topics.items():
        topic = state.by_name.get(name)
        if name in INTERNAL_TOPICS:
            raise SourceError(f"topic {name!r} is internal: it has no records, its state is all there is")
        if topic is None:
            raise SourceError(
                f"there is no topic {name!r} in {which(options)}, but {_there(state)}: check the name, or "
                f"{cure(options)}"
            )
        if beyond := sorted(number for number in chosen or () if number >= len(topic.partitions)):
            raise SourceError(
                f"topic {name!r} has no partition {beyond[0]}, only 0 to {len(topic.partitions) - 1}"
            )


def check_pattern(state: ControllerState, options: ReadOptions) -> None:
    """Raise SourceError if topics are wanted by a pattern and none matches."""
    if options.pattern is not None and not any(wanted_places(state, options)):
        raise SourceError(
            f"option 'subscribePattern' is {options.pattern.pattern!r}, and matches no whole name of a topic "
            f"in {which(options)}, but there is {_there(state)}"
        )


def wanted_places(state: ControllerState, options: ReadOptions) -> Iterator[Place]:
    """The wanted partitions that there are; topics that match a pattern come in the order of names."""
    topics = dict(options.topics)
    if options.pattern is not None:
        matching = sorted(filter(options.pattern.fullmatch, _shown(state)))
        topics = dict.fromkeys(matching, options.pattern_partitions)
    for name, chosen in topics.items():
        topic = state.by_name.get(name)
        if topic is None or name in INTERNAL_TOPICS:
            continue
        for number in range(len(topic.partitions)):
            if chosen is None or number in chosen:
                yield topic, number


def which(options: ReadOptions) -> str:
    """The states that are read, for messages."""
    return "what is published" if options.checkpoint is None else f"checkpoint {options.checkpoint}"


def cure(options: ReadOptions) -> str:
    """Advice where something is not published in them."""
    return f"wait: {PUBLISHES}" if options.checkpoint is None else "name a later checkpoint"


def _there(state: ControllerState) -> str:
    return ", ".join(sorted(_shown(state))) or "none"


def _shown(state: ControllerState) -> set[str]:
    """The topics that clients are told of: no internal ones, and none that a version of views is filled into,
    which is half a view, and gets another name or goes."""
    return {name for name in state.by_name.keys() - INTERNAL_TOPICS if not is_hidden(name)}
