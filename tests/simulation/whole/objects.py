"""What may be let go of in the store: judged at each deletion, by the newest state that was committed.

The newest committed state of a group is that of the replica that applied most, whether it still runs or not:
what it does not name, no later state names, unless a later entry brings it. So an object may go when neither
that state names it, nor a checkpoint that is leased in it, nor an entry in a log that may still be committed;
and after that no entry that is applied for the first time may name it, also if its bytes came back meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from strandline.node.raft.entries import EntryKind
from strandline.snapshot.level_one_format import parse
from strandline.snapshot.names import SnapshotName, parse_name
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.internal_topics import INTERNAL_TOPICS
from strandline.statemachine.machine import StateMachine
from strandline.statemachine.object_names import PREFIX, object_name, parse_object_name
from strandline.statemachine.partition.extent import OBJECT_ROW, ROW, InlineExtent
from strandline.statemachine.partition.level_one import (
    LEVEL_ONE_PREFIX,
    LevelOneExtent,
    level_one_name,
    parse_level_one_name,
)
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import PartitionOpcode

if TYPE_CHECKING:
    from tests.simulation.store import SimStore
    from tests.simulation.whole.sim_broker import SimBroker

BODY = 16
"""Bytes in front of a batch that the broker stamps: base offset, length, leader epoch."""


class Place(NamedTuple):
    """A partition of one topic, by the topic's id: a topic of the same name later is another."""

    topic_id: bytes
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id.hex()[:6]}-{self.partition}"


@dataclass(slots=True)
class Named:
    """What one state names."""

    level_zero: set[tuple[int, bytes]] = field(default_factory=set)
    """(epoch, object id)."""
    level_one: set[bytes] = field(default_factory=set)
    """Unique bytes."""


def named_by(machine: PartitionStateMachine) -> Named:
    rows = ROW.iter_unpack(b"".join(machine.extents.rows()))
    return Named(
        {(row[6], row[8]) for row in rows if row[0] == OBJECT_ROW},
        {extent.unique for extent in machine.level_one},
    )


def _objects_named(kind: int, fields: list[Any]) -> set[tuple[int, bytes]]:
    """(epoch, object id) of the level-zero objects that a command names."""
    if kind == PartitionOpcode.APPEND:
        return {(row[3], row[5]) for row in fields[2]}
    return {(row[2], row[4]) for row in fields[2]} if kind == PartitionOpcode.STORE_INLINE else set()


class Objects:
    """The newest states, and what they and the logs name."""

    def __init__(self, broken: Callable[[str, str], None]) -> None:
        self.store: SimStore
        self.brokers: Callable[[], Iterable[SimBroker]] = list
        self.collected = self.level_one_deleted = self.snapshots_deleted = self.reconciled = self.merged = 0
        self.stored_inline = 0
        self._broken = broken
        self._newest: dict[int, tuple[int, Any]] = {}
        self._terms: dict[int, tuple[int, int]] = {}
        """Index and term of the newest entry of each group that was applied."""
        self._named: dict[int, tuple[int, Named]] = {}
        self._captured: dict[tuple[int, int], bytes | Named] = {}
        """What each checkpoint's state names, made of its bytes when it is first asked for."""
        self._places: tuple[int, dict[int, Place]] = (-1, {})
        self._collectable: dict[tuple[int, int], int] = {}
        """The highest epoch that each process, (node, boot), took for collectable."""
        self._bounds: dict[int, tuple[int, int]] = {}

    def watch(self, store: SimStore, brokers: Callable[[], Iterable[SimBroker]]) -> None:
        """Judge every deletion in this store from now on."""
        self.store, self.brokers = store, brokers
        store.on_delete = self._deleting

    # What is applied.

    def applying(self, group: int, index: int, term: int, machine: Any) -> None:
        """A replica is about to apply an entry; its state will be the newest if none is further."""
        self.committed(group, index, term)
        known = self._newest.get(group)
        if known is None or index > known[0]:
            self._newest[group] = (index, machine)

    def committed(self, group: int, index: int, term: int) -> None:
        """A replica is about to apply an entry, which may be a leader's first and change nothing."""
        if index > self._terms.get(group, (0, 0))[0]:
            self._terms[group] = (index, term)

    def begun(self, group: int, index: int, machine: PartitionStateMachine) -> None:
        """A partition's replica is about to apply a leader's first entry: its state is the newest if none is
        known. While the cluster epoch rests that entry may be the only one."""
        self._newest.setdefault(group, (index, machine))

    def captured(self, group: int, index: int, state: bytes) -> None:
        """A checkpoint's state, by the first replica that captured it."""
        if group != CONTROLLER_GROUP:
            self._captured.setdefault((group, index), state)

    def restored(self, states: Mapping[int, tuple[int, int, StateMachine]]) -> None:
        """The newest states are these: (index, term, state) by group."""
        self._newest = {group: (index, machine) for group, (index, _, machine) in states.items()}
        self._terms |= {group: (index, term) for group, (index, term, _) in states.items()}
        self._named.clear()
        self._bounds.clear()
        self._places = (-1, {})

    def newest_term(self, group: int) -> int:
        """Term of the newest entry of a group that was applied."""
        return self._terms.get(group, (0, 0))[1]

    def newest(self, group: int) -> PartitionStateMachine | None:
        """The newest committed state of a partition."""
        known = self._newest.get(group)
        return known[1] if known is not None and isinstance(known[1], PartitionStateMachine) else None

    def newest_groups(self, group: int) -> GroupsMachine | None:
        """The newest committed state of a coordinator of groups."""
        known = self._newest.get(group)
        return known[1] if known is not None and isinstance(known[1], GroupsMachine) else None

    def controller(self) -> Controller | None:
        known = self._newest.get(CONTROLLER_GROUP)
        return known[1] if known is not None and isinstance(known[1], Controller) else None

    def places(self) -> dict[int, Place]:
        """Partitions of the topics there are, by their groups; coordinators hold no records."""
        controller = self.controller()
        if controller is None:
            return {}
        if self._places[0] != controller.version:
            places = {
                partition.group: Place(topic.topic_id, number)
                for topic in controller.topics
                if topic.name not in INTERNAL_TOPICS
                for number, partition in enumerate(topic.partitions)
            }
            self._places = (controller.version, places)
        return self._places[1]

    def machine_of(self, place: Place) -> PartitionStateMachine | None:
        """The newest state of a partition of a topic that is there."""
        for group, known in self.places().items():
            if known == place:
                return self.newest(group)
        return None

    # What is named by entries.

    def check_append(self, where: str, epoch: int, identity: bytes) -> None:
        """An entry, applied for the first time, names a level-zero object."""
        name = object_name(epoch, identity)
        if name in self.store.deleted:
            self._broken(
                "named after deletion",
                f"{where} names {name}, which was deleted at {self.store.deleted[name]:.3f}",
            )

    def check_stored_inline(self, where: str, rows: Iterable[Any], machine: PartitionStateMachine) -> None:
        """A StoreInline, applied for the first time: the objects have the bytes that the state has."""
        inline = dict(machine.extents.inline())
        for base, length, epoch, position, identity in rows:
            self.check_append(where, epoch, identity)
            name = object_name(epoch, identity)
            stored = self.store.objects.get(name, b"")[position : position + length]
            if base in inline and stored != inline[base]:
                self._broken("stored first", f"{where}: {name} has not the batch that is inline at {base}")
            self.stored_inline += base in inline

    def check_reconciled(
        self, where: str, first: int, rows: Iterable[Any], machine: PartitionStateMachine, place: Place
    ) -> None:
        """An AdvanceReconciled, applied for the first time: level one holds what level zero held."""
        made = [LevelOneExtent(*row) for row in rows]
        self._check_stored(where, made, place)
        if first != machine.extents.first_offset or any(one.term != machine.term for one in made):
            return  # it lost a race
        self.reconciled += len(made)
        held = []
        for extent in machine.extents:
            if extent.base_offset >= made[-1].end_offset:
                break
            if isinstance(extent, InlineExtent):
                data = extent.data
            else:
                whole = self.store.objects.get(extent.object_name, b"")
                data = whole[extent.position : extent.position + extent.length]
            held.append((extent.base_offset, extent.term, data[BODY:]))
        self._compare(where, held, made, place)

    def check_replaced(
        self,
        where: str,
        old: Iterable[Any],
        rows: Iterable[Any],
        machine: PartitionStateMachine,
        place: Place,
    ) -> None:
        """A ReplaceLevelOne, applied for the first time: the new objects hold what the old ones held."""
        made = [LevelOneExtent(*row) for row in rows]
        self._check_stored(where, made, place)
        uniques = [unique for _, unique in old]
        before = [extent for extent in machine.level_one if extent.unique in uniques]
        if len(before) != len(uniques) or any(one.term != machine.term for one in made):
            return  # it lost a race
        self.merged += len(before)
        self._compare(where, [batch for one in before for batch in self.batches(place, one)], made, place)

    def _check_stored(self, where: str, made: list[LevelOneExtent], place: Place) -> None:
        for extent in made:
            name = level_one_name(*place, extent.term, extent.unique)
            if name in self.store.deleted:
                self._broken("named after deletion", f"{where} names {name}, which was deleted")
            elif name not in self.store.objects:
                self._broken("stored first", f"{where} names {name}, which is not in the store")

    def _compare(
        self, where: str, held: list[tuple[int, int, bytes]], made: list[LevelOneExtent], place: Place
    ) -> None:
        if held != [batch for one in made for batch in self.batches(place, one)]:
            self._broken("same records", f"{where}: level one does not hold what was there, in {place}")

    def batches(self, place: Place, extent: LevelOneExtent) -> list[tuple[int, int, bytes]]:
        """(base offset, leader epoch, the bytes behind) of each batch in a level-one object."""
        name = level_one_name(*place, extent.term, extent.unique)
        data = self.store.objects.get(name)
        if data is None:
            self._broken("stored", f"{name} is named by {place} and not in the store")
            return []
        found = []
        for block in parse(name, data).blocks:
            at = block.position
            while at < block.end:
                size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
                base, epoch = data[at : at + 8], data[at + 12 : at + 16]
                body = data[at + BODY : at + size]
                found.append((int.from_bytes(base, "big"), int.from_bytes(epoch, "big"), body))
                at += size
        return found

    # What is deleted.

    def _deleting(self, name: str) -> None:
        if name.startswith(PREFIX):
            self.collected += name in self.store.objects
            self._deleting_level_zero(name)
        elif name.startswith(LEVEL_ONE_PREFIX):
            self.level_one_deleted += name in self.store.objects
            self._deleting_level_one(name)
        elif name.startswith("snapshots/"):
            self.snapshots_deleted += name in self.store.objects
            self._deleting_snapshot(name)

    def _deleting_level_zero(self, name: str) -> None:
        epoch, identity = parse_object_name(name)
        for group, place in self.places().items():
            if (epoch, identity) in self._state(group).level_zero:
                self._broken("live object deleted", f"{name} is named by {place}")
            for index, leased in self._leased(group):
                if (epoch, identity) in leased.level_zero:
                    self._broken("live object deleted", f"{name} is named by checkpoint {index} of {place}")
            for index, kind, fields in self._undecided(group):
                if (epoch, identity) in _objects_named(kind, fields):
                    self._broken("undecided object deleted", f"{name} is named by entry {index} of {place}")

    def _deleting_level_one(self, name: str) -> None:
        topic_id, partition, _, unique = parse_level_one_name(name)
        for group, place in self.places().items():
            if place != (topic_id, partition):
                continue
            if unique in self._state(group).level_one:
                self._broken("live object deleted", f"{name} is named by {place}")
            for index, leased in self._leased(group):
                if unique in leased.level_one:
                    self._broken("live object deleted", f"{name} is named by checkpoint {index} of {place}")
            for index, kind, fields in self._undecided(group):
                if kind in (PartitionOpcode.ADVANCE_RECONCILED, PartitionOpcode.REPLACE_LEVEL_ONE) and any(
                    row[6] == unique for row in fields[1]
                ):
                    self._broken("undecided object deleted", f"{name} is named by entry {index} of {place}")

    def _deleting_snapshot(self, name: str) -> None:
        """Published checkpoints leave the state's list before their documents go."""
        parsed = parse_name(name)
        if not isinstance(parsed, SnapshotName) or parsed.group not in self.places():
            return
        machine = self.newest(parsed.group)
        if machine is not None and any(
            one.log_index == parsed.log_index for one in machine.checkpoints.retained
        ):
            self._broken("live object deleted", f"{name}: the partition still retains this checkpoint")

    def _state(self, group: int) -> Named:
        known = self._newest.get(group)
        if known is None:
            return Named()
        index, machine = known
        cached = self._named.get(group)
        if cached is None or cached[0] != index:
            cached = self._named[group] = (index, named_by(machine))
        return cached[1]

    def _leased(self, group: int) -> Iterator[tuple[int, Named]]:
        machine = self.newest(group)
        if machine is None:
            return
        for one in machine.checkpoints.retained:
            if one.lease_until > machine.time:
                captured = self._captured.get((group, one.log_index))
                if captured is None:
                    self._broken(
                        "captured", f"group {group} leases its state at {one.log_index}, which none has"
                    )
                    continue
                if isinstance(captured, bytes):
                    restored = PartitionStateMachine(0, lambda index, state: None)
                    restored.restore(captured)
                    captured = self._captured[group, one.log_index] = named_by(restored)
                yield one.log_index, captured

    def _undecided(self, group: int) -> Iterator[tuple[int, int, list[Any]]]:
        """(index, kind, fields) of commands in logs that agree with all that is known to be committed."""
        index, term = self._terms.get(group, (0, 0))
        for broker in self.brokers():
            hosted = broker.host.groups.get(group)
            if hosted is None or hosted.journal.last <= index or hosted.journal.term_at(index) != term:
                continue
            for command, at, logged_in in hosted.journal.after(index):
                if command[0] != EntryKind.REGULAR:
                    continue
                made_in, _, commands = msgpack.unpackb(command[1:])
                if made_in == logged_in:
                    for kind, *fields in commands:
                        yield at, kind, fields

    # How far deletion may go.

    def check_collectable(self, node: int, boot: int, epoch: int) -> None:
        """A process takes everything up to this epoch for collectable: then every partition must."""
        before = self._collectable.get((node, boot), epoch)
        if epoch < before:
            self._broken("collectable epochs", f"node {node} went from M = {before} to {epoch}")
        if epoch == before and (node, boot) in self._collectable:
            return
        self._collectable[node, boot] = epoch
        for group, place in self.places().items():
            machine = self.newest(group)
            if machine is not None and (bound := self.bound(group)) < epoch:
                self._broken(
                    "collectable epochs",
                    f"node {node} takes epochs up to {epoch} for collectable, {place} those up to {bound}",
                )

    def bound(self, group: int) -> int:
        """M(p) by the newest state, worked out anew from what it and its leased checkpoints name."""
        index, machine = self._newest[group]
        cached = self._bounds.get(group)
        if cached is None or cached[0] != index:
            named = [self._state(group), *(leased for _, leased in self._leased(group))]
            epochs = [epoch for one in named for epoch, _ in one.level_zero]
            cached = self._bounds[group] = (index, min([machine.previous_applied_epoch, *epochs]) - 1)
        return cached[1]
