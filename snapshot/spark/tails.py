"""States that tails lead to: newer than those of the newest checkpoints, by seconds instead of minutes.

A state is followed from whatever is newest, a checkpoint or a state in a tail, by the entries behind it. They
are applied by the replicas' own state machine, so a reader sees what a replica saw. Where something between
two sections is missing, the older state is what there is, until a newer one comes.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from strandline.snapshot.document import SnapshotDocument
from strandline.snapshot.log_document import LogDamaged
from strandline.snapshot.spark.fetch import PARALLEL_GETS
from strandline.snapshot.spark.options import SourceError
from strandline.snapshot.storage import ObjectMissing, Storage
from strandline.snapshot.tail_document import (
    OWNER_NAME,
    Section,
    TailDamaged,
    TailDocument,
    TailTooNew,
    decode_tail,
    life_prefix,
    parse_tail_name,
    read_incarnation,
    tails_prefix,
)
from strandline.statemachine.machine import Captured, Corruption
from strandline.statemachine.partition.partition import PartitionStateMachine

_log = logging.getLogger(__name__)

FOLLOWED_AT_ONCE: Final = 256
"""Tails that are in memory while they are read."""


@dataclass(slots=True)
class _Followed:
    """One group, and what of it was read and not applied yet."""

    index: int = 0
    """The state is that after this entry; 0: there is none yet."""
    name: str = ""
    """Name of the object that led to it, for messages."""
    told: bool = False
    """Whether that object is a tail."""
    kind: str = ""
    state: bytes = b""
    made: int = 0
    """The entry that `state` is as of."""
    machine: PartitionStateMachine | None = None
    """The state as of `index`, once an entry was applied to it."""
    waiting: list[tuple[str, Section]] = field(default_factory=list)
    """Names of tails, and their sections."""


class Tails:
    """The tails of one cluster. Different groups may be asked for by several threads, after `read`."""

    def __init__(self, storage: Storage, cluster: str) -> None:
        """Nothing is read yet."""
        self._storage = storage
        self._cluster = cluster
        self._life: str | None = None
        """Prefix of the tails of the storage's present incarnation."""
        self._lives: set[str] = set()
        """Folders of tails when the owner was last read: a new one may be a new owner's."""
        self._known: list[str] = []
        """Names of the tails that were read, and are still there."""
        self._groups: dict[int, _Followed] = {}

    @property
    def there(self) -> bool:
        """Whether there were any at the last `read`."""
        return bool(self._known)

    def read(self, *, whole: bool = False) -> frozenset[int]:
        """Read what is new; gives the followed groups that it tells of.

        With `whole`, also whose the storage is: nodes of a restored cluster may publish no tails.
        Raises StorageError, and SourceError for tails of a newer release.
        """
        listed = self._listed(whole)
        known = set(self._known)
        told = self._take([name for name in listed if name not in known], self._groups)
        self._known = listed
        return frozenset(told)

    def follow(self, groups: Collection[int]) -> None:
        """Follow these groups, too, from the tails that were there at the last `read` on; raises as that."""
        added = [group for group in groups if group not in self._groups]
        if added:
            self._groups.update((group, _Followed()) for group in added)
            try:
                self._take(self._known, added)
            except BaseException:
                for group in added:  # half of what was known is not all of it: the next call begins again
                    del self._groups[group]
                raise

    def keep(self, groups: Collection[int]) -> None:
        """Follow no others any more: their topics are gone."""
        self._groups = {group: one for group, one in self._groups.items() if group in groups}

    def state(
        self, group: int, base: tuple[str, SnapshotDocument] | None
    ) -> tuple[str, SnapshotDocument] | None:
        """The newest state of a followed group, from a checkpoint or what was read; None: there is none.

        Raises SourceError for a section that no machine could have written.
        """
        followed = self._groups[group]
        if base is not None and base[1].index > followed.index:
            _begin(followed, base[0], base[1].kind, base[1].index, base[1].state)
        try:
            self._advance(followed)
        except (LogDamaged, Corruption, ValueError) as error:
            raise SourceError(f"{followed.name}, group {group}: {error}: report this") from error
        if not followed.index:
            return None
        if followed.machine is not None and followed.made < followed.index:
            followed.state, followed.made = followed.machine.snapshot(), followed.index
        document = SnapshotDocument(
            self._cluster, followed.kind, group, followed.index, 0, (), (), followed.state
        )
        return followed.name, document

    def tell_of(self, group: int) -> bool:
        """Whether the group's newest state is one that tails led to."""
        return group in self._groups and self._groups[group].told

    def has_state(self, group: int) -> bool:
        """Whether a followed group has a state; it has none any more once its life of the cluster ended."""
        return self._groups[group].index > 0

    def _listed(self, whole: bool) -> list[str]:
        names = self._storage.list(tails_prefix(self._cluster))
        if not names:
            return []
        lives = {name.rpartition("/")[0] + "/" for name in names}
        if whole or self._life is None or not lives <= self._lives:
            try:
                incarnation = read_incarnation(self._storage.get(OWNER_NAME))
            except (ObjectMissing, ValueError) as error:
                raise SourceError(f"{self._storage.url}: {error}") from error
            life = life_prefix(self._cluster, incarnation)
            if life != self._life:
                # What was followed is of a life that has ended.
                self._groups = {group: _Followed() for group in self._groups}
            self._life, self._lives = life, lives
        return [name for name in names if name.startswith(self._life) and _is_tail(name)]

    def _take(self, names: list[str], groups: Collection[int]) -> set[int]:
        """Keep these groups' sections of some tails; gives the groups that have any."""
        told = set()
        with ThreadPoolExecutor(PARALLEL_GETS) as pool:
            for start in range(0, len(names), FOLLOWED_AT_ONCE):
                some = names[start : start + FOLLOWED_AT_ONCE]
                for name, document in zip(some, pool.map(self._document, some), strict=True):
                    for section in () if document is None else document.sections:
                        if section.group in groups:
                            self._groups[section.group].waiting.append((name, section))
                            told.add(section.group)
        return told

    def _document(self, name: str) -> TailDocument | None:
        try:
            return decode_tail(self._storage.get(name))
        except ObjectMissing:
            return None  # a checkpoint has overtaken it
        except TailTooNew as error:
            raise SourceError(f"{name}: {error}") from error
        except TailDamaged as error:
            _log.warning("%s: %s; what it tells is seen from the next checkpoint on", name, error)
            return None

    def _advance(self, followed: _Followed) -> None:
        """Apply all that waits and can be linked; the rest goes on waiting."""
        waiting = sorted(followed.waiting, key=lambda one: (one[1].log_index, one[1].after))
        states = [(one.after, name, one) for name, one in waiting if one.state is not None]
        if states and max(states)[0] > followed.index:
            _, name, newest = max(states)
            _begin(followed, name, newest.kind, newest.after, newest.state or b"")
            followed.told = True
        for name, section in waiting:
            if 0 < followed.index < section.log_index and section.after <= followed.index:
                self._apply(followed, name, section)
        followed.waiting = [(name, one) for name, one in waiting if one.log_index > followed.index]

    def _apply(self, followed: _Followed, name: str, section: Section) -> None:
        machine = followed.machine
        if machine is None:
            machine = PartitionStateMachine(0, _ignore)
            machine.restore(followed.state)
        # Half of a section is no state: whatever fails here fails again.
        followed.machine, followed.name, followed.told = machine, name, True
        for entry in section.read():
            if entry.log_index <= followed.index:
                continue
            if isinstance(entry.given, int):
                machine.begin_term(entry.log_index, entry.term, entry.given)
            else:
                machine.apply(entry.log_index, entry.term, entry.given)
            followed.index = entry.log_index


def _begin(followed: _Followed, name: str, kind: str, index: int, state: bytes) -> None:
    followed.name, followed.kind, followed.state, followed.machine = name, kind, state, None
    followed.index, followed.made, followed.told = index, index, False


def _is_tail(name: str) -> bool:
    try:
        parse_tail_name(name)
    except ValueError:
        return False
    return True


def _ignore(index: int, captured: Captured) -> None:
    """A checkpoint that is met is the nodes' to publish."""
