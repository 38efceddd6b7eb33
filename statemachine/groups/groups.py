"""The state machine of a groups' coordinator: classic groups, consumer groups of KIP-848, offsets.

It puts together what the modules of each concern decide. A kind of group gives two things: `HANDLERS`,
functions `(state: GroupsState, index, *fields)` by command kind (consumer groups: 32 to 63), and a class that
is a Membership, with `loaded(fields)` as the way back from `fields()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Final

import msgpack

from strandline.statemachine.groups import conversions, generation, group_offsets
from strandline.statemachine.groups.classic_group import ClassicGroup
from strandline.statemachine.groups.consumer_group import ConsumerGroup
from strandline.statemachine.groups.group_state import Group, GroupsState, Membership
from strandline.statemachine.groups.offsets import Offsets
from strandline.statemachine.groups.transactional_producers import TransactionalProducers
from strandline.statemachine.machine import Rows, keyed_rows, rows

_MEMBERSHIPS: Mapping[str, Callable[[list[Any]], Membership]] = {
    ClassicGroup.protocol: ClassicGroup.loaded,
    ConsumerGroup.protocol: ConsumerGroup.loaded,
}

_ROW_FIELDS: Final = 4
_OFFSETS_FIELDS: Final = 3


def _row(group_id: str, group: Group) -> list[Any]:
    membership = group.membership
    return [
        group_id,
        None if membership is None else membership.protocol,
        None if membership is None else membership.fields(),
        group.offsets.fields(),
    ]


class GroupsMachine(GroupsState):
    """The groups that one partition of `__consumer_offsets` coordinates."""

    kind = "groups"
    formats = (1, 2)
    """2: consumer groups may have classic members. Whatever format 1 has means the same in format 2."""
    HANDLERS: ClassVar[Mapping[int, Callable[..., Any]]] = {
        **generation.HANDLERS,
        **group_offsets.HANDLERS,
        **conversions.HANDLERS,
    }

    def fields(self) -> dict[str, Any]:
        """Its part of the snapshot."""
        held = dict(self.groups)
        self.age += 1
        return {
            "groups": Rows(len(held), partial(map, _row, held, held.values())),
            "producers": self.producers.rows(),
        }

    def parts(self, row: Any) -> Iterable[Any]:
        """The offsets of a group."""
        return row.offsets.each() if isinstance(row, Group) else ()

    def load(self, name: str, source: msgpack.Unpacker) -> None:
        """Take up one of what `fields` gave."""
        if name == "producers":
            self.producers = TransactionalProducers.loaded(rows(source))
            return
        for _ in range(source.read_array_header()):
            if source.read_array_header() != _ROW_FIELDS:
                raise ValueError("a group's row has more or less than a group has")
            group_id, protocol, membership = source.unpack(), source.unpack(), source.unpack()
            loaded = None if protocol is None else _MEMBERSHIPS[protocol](membership)
            # One group may have all offsets that there are.
            if source.read_array_header() != _OFFSETS_FIELDS:
                raise ValueError(f"the offsets of group {group_id} have more or less than offsets have")
            offsets = rows(source), keyed_rows(source), keyed_rows(source)
            self.group_for(group_id)  # counts it
            self.groups[group_id] = Group(loaded, Offsets.loaded(offsets, self.totals), age=self.age)
