"""The state machine of a groups' coordinator: classic groups, consumer groups of KIP-848, offsets.

It puts together what the modules of each concern decide. A kind of group gives two things: `HANDLERS`,
functions `(state: GroupsState, index, *fields)` by command kind (consumer groups: 32 to 63), and a class that
is a Membership, with `loaded(fields)` as the way back from `fields()`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from strandline.statemachine.groups import classic_group, conversions, group_offsets
from strandline.statemachine.groups.classic_group import ClassicGroup
from strandline.statemachine.groups.consumer_group import ConsumerGroup
from strandline.statemachine.groups.group_state import Group, GroupsState, Membership
from strandline.statemachine.groups.offsets import Offsets
from strandline.statemachine.groups.transactional_producers import TransactionalProducers
from strandline.statemachine.machine import Rows

_MEMBERSHIPS: Mapping[str, Callable[[list[Any]], Membership]] = {
    ClassicGroup.protocol: ClassicGroup.loaded,
    ConsumerGroup.protocol: ConsumerGroup.loaded,
}


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
        **classic_group.HANDLERS,
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

    def load(self, fields: dict[str, Any]) -> None:
        """Take up what `fields` gave."""
        for group_id, protocol, membership, offsets in fields.pop("groups"):
            loaded = None if protocol is None else _MEMBERSHIPS[protocol](membership)
            self.group_for(group_id)  # counts it
            self.groups[group_id] = Group(loaded, Offsets.loaded(offsets, self.totals), age=self.age)
        self.producers = TransactionalProducers.loaded(fields.pop("producers"))
        if fields:
            raise ValueError(f"unknown fields {sorted(fields)}")
