"""What is known of a run from outside and from every replica, and the rules that hold at every moment.

Producers enter each batch before they send it; whoever sees bytes finds the batch by them. Replicas enter
each entry as they apply it, so what they disagree on is found at once and not at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import msgpack

from strandline.statemachine.coordinator_machine import CoordinatorMachine
from strandline.statemachine.machine import StateMachine
from strandline.statemachine.object_names import object_name
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import PartitionOpcode
from tests.simulation.report import Finding
from tests.simulation.whole.objects import BODY, Objects, Place
from tests.simulation.whole.retention import Retention

BEGAN = b"began"
"""What is kept of the entry with which a term begins."""
STATE_EVERY = 8
"""Entries between two states that replicas are compared by."""


@dataclass(eq=False, slots=True)
class Sent:
    """A batch, from the moment its producer made it."""

    producer: str
    number: int
    """Its place among those of this producer for this partition."""
    place: Place
    records: int
    body: bytes
    idempotent: bool
    connection: int = 0
    """The connection a batch without producer id was sent on, once."""
    acked: int | None = None
    acked_at: float = 0.0
    """When that was told."""
    refused: str | None = None
    """A code under which it is certainly not there."""

    def __str__(self) -> str:
        return f"batch {self.number} of {self.producer} for {self.place}"


@dataclass(slots=True)
class _Log:
    """What a group's replicas applied."""

    entries: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    states: dict[int, int] = field(default_factory=dict)
    checkpoints: dict[int, int] = field(default_factory=dict)
    window: tuple[int, int] = (0, 0)


class Ledger:
    """Findings, and everything they are judged by."""

    def __init__(self, now: Callable[[], float], stop: Callable[[], None]) -> None:
        self.findings: list[Finding] = []
        self.sent: dict[bytes, Sent] = {}
        """By the bytes of the batch behind what the broker stamps."""
        self.seen: dict[Place, dict[int, Sent]] = {}
        """What was acknowledged or read at each offset, by whoever it was."""
        self.producer_ids: dict[int, str] = {}
        self.leaders: dict[tuple[int, int], int] = {}
        self.entries = self.slides = self.inline = 0
        self.objects = Objects(self.broken)
        self.retention = Retention(self.objects, self.broken, now)
        self.on_first: Callable[[int, int, int], None] = lambda node, group, kind: None
        """Hears of each partition's command when the first replica, (node, group), applies it."""
        self.on_decision: Callable[[int, int, str, int], None] = lambda node, group, which, kind: None
        """As `on_first`, for commands of coordinators: of which kind of coordinator, and which command."""
        self.on_controller: list[Callable[[bytes], None]] = []
        """Hear of each of the controller's commands before the first replica applies it."""
        self.on_entry: Callable[[int, int, PartitionStateMachine, Place, list[Any]], None] = (
            lambda node, group, machine, place, commands: None
        )
        """Hears of each partition's entry before the first replica, (node, group), applies it. The commands
        are none where the entry was made in another term, and changes nothing."""
        self.on_published: Callable[[str, list[Any], PartitionStateMachine, Place], None] = (
            lambda where, fields, machine, place: self.broken(
                "published", f"{where}: {place} is not compacted, and its level one is replaced by less"
            )
        )
        """Judges a ReplaceLevelOne from a replica's compacted log, before the first replica applies it."""
        self.on_replica: Callable[[Any, Any], None] = lambda broker, place: None
        """Hears of each replica, as a broker and a PartitionGroup, before it is created."""
        self._logs: dict[int, _Log] = {}
        self._epochs: dict[tuple[int, int, int], tuple[int, int, int]] = {}
        self._cluster_epoch: tuple[int, int] = (0, 0)
        self._now = now
        self._stop = stop

    def broken(self, check: str, text: str) -> None:
        """A rule does not hold: the run ends."""
        if len(self.findings) < 20:
            self.findings.append(Finding(check, round(self._now(), 6), text))
        self._stop()

    # What clients know.

    def made(self, batch: Sent) -> None:
        self.sent[batch.body] = batch

    def named(self, producer_id: int, producer: str) -> None:
        """A producer was given an id."""
        before = self.producer_ids.setdefault(producer_id, producer)
        if before != producer:
            self.broken("producer ids", f"{producer_id} was given to {before} and to {producer}")

    def acked(self, batch: Sent, offset: int) -> None:
        if batch.acked is not None and batch.acked != offset:
            self.broken("one offset", f"{batch} was acknowledged at {batch.acked} and at {offset}")
        if batch.acked is None:
            batch.acked_at = self._now()
        batch.acked = offset
        self._at(batch.place, offset, batch)

    def read(self, place: Place, offset: int, data: bytes, reader: str) -> Sent | None:
        """Somebody was given this batch; None when that is a finding."""
        batch = self.sent.get(bytes(data[BODY:]))
        if batch is None:
            self.broken("bytes", f"{reader} read bytes that nobody wrote at {offset} of {place}")
            return None
        if batch.place != place:
            self.broken("address", f"{reader} read {batch} at {offset} of {place}")
            return None
        return batch if self._at(place, offset, batch) else None

    def _at(self, place: Place, offset: int, batch: Sent) -> bool:
        before = self.seen.setdefault(place, {}).setdefault(offset, batch)
        if before is not batch:
            self.broken("one record an offset", f"at {offset} of {place} were {before} and {batch}")
        return before is batch

    def restored(
        self, states: Mapping[int, tuple[int, int, StateMachine]], ends: Mapping[Place, int]
    ) -> list[Sent]:
        """Go on with a restored cluster: its groups' (index, term, state), and where its partitions end.

        What was acknowledged or read from there on is no more. Returns the acknowledged ones of it.
        """
        self.objects.restored(states)
        for log in self._logs.values():
            log.window = (0, 0)
        lost = []
        for batch in self.sent.values():
            if batch.acked is not None and batch.acked >= ends.get(batch.place, 0):
                lost.append(batch)
                batch.acked = None
        for place, seen in self.seen.items():
            for offset in [one for one in seen if one >= ends.get(place, 0)]:
                del seen[offset]
        return lost

    # What replicas do.

    def began(self, group: int, index: int, term: int, node: int) -> None:
        leader = self.leaders.setdefault((group, term), node)
        if leader != node:
            self.broken("one leader a term", f"nodes {leader} and {node} led group {group} in term {term}")
        self.objects.committed(group, index, term)
        self._entry(group, index, term, BEGAN)

    def applied(
        self,
        replica: tuple[int, int, int],
        index: int,
        term: int,
        command: bytes,
        machine: Any,
        place: Place | None,
    ) -> None:
        """A replica, (group, node, boot), is about to apply an entry."""
        group = replica[0]
        first = self._entry(group, index, term, command)
        plain = None if machine is None else machine.plain
        if plain is not None:
            self.objects.applying(group, index, term, plain)
        if isinstance(plain, PartitionStateMachine):
            self._check_epochs(replica, plain)
            if first and place is not None:
                self._check_commands(replica, index, term, command, plain, place)
        elif isinstance(plain, CoordinatorMachine):
            made_in, _, kind, *_ = msgpack.unpackb(command)
            if first and made_in == term:
                self.on_decision(replica[1], group, plain.kind, kind)
        elif plain is not None:
            epoch = plain.cluster_epoch
            known_at, known = self._cluster_epoch
            if index > known_at:
                if epoch < known:
                    self.broken(
                        "cluster epoch", f"it was {known} at entry {known_at}, {epoch} before {index}"
                    )
                self._cluster_epoch = (index, epoch)
            if first:
                for applying in self.on_controller:
                    applying(command)
        if machine is not None and index % STATE_EVERY == 0:
            self.state(group, index - 1, machine.snapshot(), f"node {replica[1]}")

    @property
    def cluster_epoch(self) -> int:
        return self._cluster_epoch[1]

    def entries_of(self, group: int) -> Mapping[int, tuple[int, bytes]]:
        """(term, command) of each entry of a group that was applied, by index."""
        log = self._logs.get(group)
        return {} if log is None else log.entries

    def state(self, group: int, index: int, state: bytes, who: str) -> None:
        """The state of a replica after this entry."""
        mark = crc32(state)
        if self._logs.setdefault(group, _Log()).states.setdefault(index, mark) != mark:
            self.broken("replicas agree", f"group {group} has other states after entry {index}: {who}")

    def checkpoint(self, group: int, index: int, state: bytes, node: int) -> None:
        mark = crc32(state)
        if self._logs.setdefault(group, _Log()).checkpoints.setdefault(index, mark) != mark:
            self.broken("checkpoints agree", f"group {group}, checkpoint {index}: node {node} has another")
        self.objects.captured(group, index, state)

    def _entry(self, group: int, index: int, term: int, command: bytes) -> bool:
        """Whether this is the first replica to apply the entry."""
        entries = self._logs.setdefault(group, _Log()).entries
        known = entries.get(index)
        if known is None:
            entries[index] = (term, command)
            self.entries += 1
            return True
        if known != (term, command):
            self.broken("log matching", f"replicas of group {group} applied other entries {index}")
        return False

    def _check_epochs(self, replica: tuple[int, int, int], machine: PartitionStateMachine) -> None:
        now = (
            machine.previous_applied_epoch,
            machine.max_applied_epoch,
            machine.max_collectable_epoch,
        )
        before = self._epochs.get(replica, now)
        if now[0] < before[0] or now[1] < before[1]:
            self.broken("applied epochs", f"replica {replica} went from {before[:2]} to {now[:2]}")
        if now[2] < before[2]:
            self.broken("collectable epochs", f"M(p) of replica {replica} went from {before[2]} to {now[2]}")
        self._epochs[replica] = now

    def _check_commands(
        self,
        replica: tuple[int, int, int],
        index: int,
        term: int,
        command: bytes,
        machine: PartitionStateMachine,
        place: Place,
    ) -> None:
        made_in, _, commands = msgpack.unpackb(command)
        group, node, _ = replica
        self.on_entry(node, group, machine, place, commands if made_in == term else [])
        if made_in != term:
            return
        log = self._logs[group]
        where = f"group {group} entry {index}"
        # Where a topic was deleted, its objects may be gone before all of its replicas are.
        there = group in self.objects.places()
        for kind, *fields in commands:
            self.on_first(node, group, kind)
            if kind == PartitionOpcode.SET_START_OFFSET:
                self.retention.check(where, fields[0], machine, place)
            elif kind == PartitionOpcode.ADVANCE_RECONCILED and there:
                self.objects.check_reconciled(where, fields[0], fields[1], machine, place)
            elif kind == PartitionOpcode.REPLACE_LEVEL_ONE and there and publishes(fields):
                self.on_published(where, fields, machine, place)
            elif kind == PartitionOpcode.REPLACE_LEVEL_ONE and there:
                self.objects.check_replaced(where, fields[0], fields[1], machine, place)
            elif kind == PartitionOpcode.APPEND_INLINE and there:
                self._check_inline(where, fields[0], place)
            elif kind in (
                PartitionOpcode.APPEND,
                PartitionOpcode.STORE_INLINE,
                PartitionOpcode.ADVANCE_EPOCH,
            ):
                self._check_window(where, log, fields[0], fields[1])
                if kind == PartitionOpcode.APPEND:
                    self._check_extents(where, fields, [row[3] for row in fields[2]], machine)
                    if there:
                        self._check_bytes(where, fields[2], place)
                elif kind == PartitionOpcode.STORE_INLINE:
                    self._check_extents(where, fields, [row[2] for row in fields[2]], machine)
                    if there:
                        self.objects.check_stored_inline(where, fields[2], machine)

    def _check_window(self, where: str, log: _Log, oldest: int, newest: int) -> None:
        if oldest < log.window[0] or newest < log.window[1]:
            self.broken("window order", f"{where}: [{oldest}, {newest}] comes after {list(log.window)}")
        self.slides += newest > log.window[1]
        log.window = (max(oldest, log.window[0]), max(newest, log.window[1]))

    def _check_extents(
        self, where: str, fields: list[Any], epochs: list[int], machine: PartitionStateMachine
    ) -> None:
        oldest, newest, _ = fields
        for epoch in epochs:
            if epoch < machine.previous_applied_epoch or not oldest <= epoch <= newest:
                self.broken(
                    "extent epochs",
                    f"{where}: epoch {epoch} in [{oldest}, {newest}],"
                    f" previous applied {machine.previous_applied_epoch}",
                )

    def _check_bytes(self, where: str, placeholders: list[Any], place: Place) -> None:
        for _, _, length, epoch, position, identity, *_ in placeholders:
            self.objects.check_append(where, epoch, identity)
            name = object_name(epoch, identity)
            stored = self.objects.store.objects.get(name, b"")[position : position + length]
            batch = self.sent.get(stored[BODY:])
            if batch is None:
                self.broken("stored first", f"{where} names what is not in {name}")
            elif batch.place != place:
                self.broken("address", f"{where} puts {batch} into {place}")

    def _check_inline(self, where: str, batches: list[Any], place: Place) -> None:
        self.inline += len(batches)
        for _, _, data, *_ in batches:
            batch = self.sent.get(data[BODY:])
            if batch is None:
                self.broken("stored first", f"{where} has bytes that no producer sent")
            elif batch.place != place:
                self.broken("address", f"{where} puts {batch} into {place}")


class Unheard(Ledger):
    """A ledger of processes that are no part of the cluster: what they apply is nothing that it did."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger._now, ledger._stop)
        self.objects.store = ledger.objects.store

    def broken(self, check: str, text: str) -> None:
        """Nothing: regrowth.py says what such processes may not do."""


def publishes(fields: list[Any]) -> bool:
    """Whether a ReplaceLevelOne comes from a compacted log: merges do not say how clean that is."""
    return len(fields) > 2 and fields[2] >= 0
