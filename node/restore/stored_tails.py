"""Reads the states of a tail point out of the tails that lead to them.

Each group's state is the newest that a tail has at or below the entry that the point names, with the entries
behind it applied by the replicas' own state machine, up to that entry and no further: what a later entry has
done might not fit the other groups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from strandline.node.objectstore.store import ObjectNotFound, ObjectStore
from strandline.node.restore.reading import READS_AT_ONCE, CannotRestore, for_each, names_below
from strandline.snapshot.document import SnapshotDocument
from strandline.snapshot.log_document import LogDamaged
from strandline.snapshot.tail_document import (
    Section,
    TailDamaged,
    TailTooNew,
    decode_tail,
    life_prefix,
    parse_tail_name,
    tails_prefix,
)
from strandline.snapshot.tail_point import GroupEntry, TailPoint
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.machine import Captured, Corruption, StateMachine
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.transactions.transactions import TransactionsMachine

_CURE: Final = "bring them back, or name another point with --point"
_MACHINES: Final[Mapping[str, Callable[[], StateMachine]]] = {
    Controller.kind: lambda: Controller(_ignore),
    GroupsMachine.kind: lambda: GroupsMachine(_ignore),
    PartitionStateMachine.kind: lambda: PartitionStateMachine(0, _ignore),
    TransactionsMachine.kind: lambda: TransactionsMachine(_ignore),
}


async def tail_documents(store: ObjectStore, point: TailPoint) -> dict[int, SnapshotDocument]:
    """The state of each group that a tail point names, by group; raises CannotRestore, StoreError."""
    sections, problems = await _sections(store, point)
    try:
        return {entry.group: state_at(point, entry, sections[entry.group]) for entry in point.groups}
    except CannotRestore as error:
        raise CannotRestore("; ".join([error.cause, *problems[:1]]), error.cure) from None


async def newest_tail_ms(store: ObjectStore, cluster: str) -> int | None:
    """The newest time in the names of a cluster's tails, Unix ms; None without any. Raises StoreError.

    Those of all its lives: where a life left no point that can be used, all of it is missing.
    """
    newest = None
    async for name in names_below(store, tails_prefix(cluster)):
        made = _made(name)
        newest = newest if made is None else max(newest or 0, made[0])
    return newest


async def _sections(store: ObjectStore, point: TailPoint) -> tuple[dict[int, list[Section]], list[str]]:
    """The sections of each group up to its entry, of tails that the point may need; problems of reading."""
    wanted = {entry.group: entry.log_index for entry in point.groups}
    prefix = life_prefix(point.cluster, point.incarnation)
    names = [name async for name in names_below(store, prefix) if may_need(point, name)]
    found: defaultdict[int, list[Section]] = defaultdict(list)
    problems: list[str] = []

    async def read(name: str) -> None:
        try:
            tail = decode_tail(bytes(await store.get(name)))
        except (ObjectNotFound, TailDamaged, TailTooNew) as error:
            problems.append(f"{name}: {error}")  # it may not be needed
            return
        for section in tail.sections:
            if section.after <= wanted.get(section.group, -1):
                found[section.group].append(section)

    await for_each(names, read, READS_AT_ONCE)
    return found, problems


def may_need(point: TailPoint, name: str) -> bool:
    """Whether the point may need the tail of this name, of its life."""
    made = _made(name)
    return made is not None and made[0] >= dict(point.floors).get(made[1], made[0] + 1)


def _made(name: str) -> tuple[int, int] | None:
    """The time and the node in a tail's name; None for anything else."""
    try:
        return parse_tail_name(name)
    except ValueError:
        return None


def state_at(point: TailPoint, entry: GroupEntry, sections: Sequence[Section]) -> SnapshotDocument:
    """The state of a group after the entry that the point names; raises CannotRestore."""
    states = [section for section in sections if section.state is not None]
    if not states:
        raise CannotRestore(
            f"no tail has a state of group {entry.group} up to entry {entry.log_index}", _CURE
        )
    base = max(states, key=lambda section: section.after)
    kind, state, index = base.kind, base.state or b"", base.after
    if index < entry.log_index:
        try:
            state, index = _applied(kind, state, index, entry.log_index, sections)
        except (Corruption, LogDamaged, ValueError, KeyError) as error:
            raise CannotRestore(
                f"the tails of group {entry.group} cannot be applied: {error}", "report this, and " + _CURE
            ) from None
    if index != entry.log_index:
        raise CannotRestore(
            f"the tails of group {entry.group} lead to entry {index}, and the point names {entry.log_index}",
            _CURE,
        )
    return SnapshotDocument(point.cluster, kind, entry.group, index, entry.term, (), (), state)


def _applied(
    kind: str, state: bytes, index: int, until: int, sections: Sequence[Section]
) -> tuple[bytes, int]:
    """The state after the entry `until`, from that after `index`; or as far as the sections go on."""
    machine = _MACHINES[kind]()
    machine.restore(state)
    for section in sorted(sections, key=lambda section: (section.log_index, section.after)):
        if not section.after <= index < section.log_index:
            continue
        for entry in section.read():
            if not index < entry.log_index <= until:
                continue
            if isinstance(entry.given, int):
                machine.begin_term(entry.log_index, entry.term, entry.given)
            else:
                machine.apply(entry.log_index, entry.term, entry.given)
            index = entry.log_index
        if section.log_index <= until:
            index = section.log_index
    return machine.snapshot(), index


def _ignore(index: int, captured: Captured) -> None:
    """A checkpoint that is met was the nodes' to publish."""
