"""The state machine of a groups' coordinator: classic groups, consumer groups of KIP-848, offsets.

It puts together what the modules of each concern decide. A kind of group gives two things: `HANDLERS`,
functions `(state: GroupsState, index, *fields)` by command kind (consumer groups: 32 to 63), and a class that
is a Membership, with `loaded(fields)` as the way back from `fields()`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from statemachine import classic_group, consumer_group, group_offsets
from statemachine.classic_group import ClassicGroup
from statemachine.consumer_group import ConsumerGroup
from statemachine.group_state import Group, GroupsState, Membership
from statemachine.offsets import Offsets, TransactionalProducers

_MEMBERSHIPS: Mapping[str, Callable[[list[Any]], Membership]] = {
    ClassicGroup.protocol: ClassicGroup.loaded,
    ConsumerGroup.protocol: ConsumerGroup.loaded,
}


class GroupsMachine(GroupsState):
    """The groups that one partition of `__consumer_offsets` coordinates."""

    kind = "groups"
    HANDLERS: ClassVar[Mapping[int, Callable[..., Any]]] = {
        **classic_group.HANDLERS,
        **group_offsets.HANDLERS,
        **consumer_group.HANDLERS,
    }

    def fields(self) -> dict[str, Any]:
        """Its part of the snapshot."""
        return {
            "groups": [
                [
                    group_id,
                    None if group.membership is None else group.membership.protocol,
                    None if group.membership is None else group.membership.fields(),
                    group.offsets.fields(),
                ]
                for group_id, group in self.groups.items()
            ],
            "producers": self.producers.fields(),
        }

    def load(self, fields: dict[str, Any]) -> None:
        """Take up what `fields` gave."""
        for group_id, protocol, membership, offsets in fields.pop("groups"):
            loaded = None if protocol is None else _MEMBERSHIPS[protocol](membership)
            self.groups[group_id] = Group(loaded, Offsets.loaded(offsets))
        self.producers = TransactionalProducers.loaded(fields.pop("producers"))
        if fields:
            raise ValueError(f"unknown fields {sorted(fields)}")
