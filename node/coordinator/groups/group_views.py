"""A group for listing and describing: as the log has it, or as this node knows it during a rebalance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from strandline.node.coordinator.groups.classic_group import LiveGroup
from strandline.node.coordinator.groups.classic_state import ClassicGroupState
from strandline.statemachine.groups.classic_group import ClassicGroup
from strandline.statemachine.groups.consumer_group import ConsumerGroup
from strandline.statemachine.groups.consumer_protocol import CONSUMERS

if TYPE_CHECKING:
    from strandline.node.coordinator.groups.coordinator import GroupCoordinator

CLASSIC: Final = ClassicGroup.protocol
CONSUMER: Final = "consumer"


class MemberView(NamedTuple):
    """A member; metadata and assignment are there when the group is stable and the member of its protocol."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupView(NamedTuple):
    """A group of either kind, in Kafka's words; of a consumer group (KIP-848) without its members."""

    group_id: str
    kind: str
    """``"classic"`` or ``"consumer"``."""
    state: str
    protocol_type: str
    protocol: str
    """"" unless it is stable."""
    members: Sequence[MemberView]


def group_view(coordinator: GroupCoordinator, group_id: str) -> GroupView | None:
    """One group; None when it is not there."""
    live = coordinator.classic.get(group_id)
    held = coordinator.machine.groups.get(group_id)
    membership = None if held is None else held.membership
    if isinstance(membership, ConsumerGroup) and not membership.is_empty:
        return GroupView(group_id, CONSUMER, membership.state, CONSUMERS, "", ())
    if live is not None and len(live.members):
        return _moving(live)
    if held is None:
        return None
    if isinstance(membership, ConsumerGroup):
        return GroupView(group_id, CONSUMER, membership.state, CONSUMERS, "", ())
    kind = membership.protocol_type if isinstance(membership, ClassicGroup) else ""
    return GroupView(group_id, CLASSIC, ClassicGroupState.EMPTY.value, kind, "", ())


def group_views(coordinator: GroupCoordinator) -> Iterator[GroupView]:
    """All groups of a coordinator, in the order in which they came."""
    ids = dict.fromkeys((*coordinator.machine.groups, *coordinator.classic.group_ids))
    for group_id in ids:
        view = group_view(coordinator, group_id)
        if view is not None:
            yield view


def _moving(live: LiveGroup) -> GroupView:
    stable = live.state is ClassicGroupState.STABLE
    members = [
        MemberView(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.metadata(live.protocol) if stable else b"",
            member.assignment if stable else b"",
        )
        for member in live.members
    ]
    protocol = live.protocol if stable else ""
    return GroupView(live.group_id, CLASSIC, live.state.value, live.protocol_type, protocol, members)
