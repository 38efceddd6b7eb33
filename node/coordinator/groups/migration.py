"""Rules for groups that change their protocol while they have members, and the result for a classic group.

Kafka's group.consumer.migration.policy and GroupMetadataManager.validateOnlineUpgrade. A group without
members becomes one of the other protocol under every policy.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from strandline.node.coordinator.groups.consumer_topics import Topics
from strandline.node.coordinator.groups.context import GroupsContext
from strandline.node.refusal import Refusal
from strandline.statemachine.groups.classic_group import ClassicGroup
from strandline.statemachine.groups.consumer_group import ConsumerGroup
from strandline.statemachine.groups.consumer_group_commands import Upgrade
from strandline.statemachine.groups.conversions import NotConvertible, fingerprint, from_classic, topics_of
from strandline.statemachine.kafka_errors import KafkaError

log = logging.getLogger(__name__)


class MigrationPolicy(NamedTuple):
    """The changes of protocol that a group with members may make."""

    upgrades: bool
    """A classic group becomes a consumer group when a member of that protocol joins."""
    downgrades: bool
    """A consumer group becomes a classic one when its last member of the consumer protocol is gone."""


POLICIES: Final = {
    "bidirectional": MigrationPolicy(True, True),
    "upgrade": MigrationPolicy(True, False),
    "downgrade": MigrationPolicy(False, True),
    "disabled": MigrationPolicy(False, False),
}
"""By Kafka's names."""


class Present(NamedTuple):
    """A group as a change of it begins."""

    group: ConsumerGroup | None
    """None: there is none, or a classic one without members."""
    upgrade: Upgrade | None = None
    """For a classic group: its conversion; `group` is then the result."""
    gone: Sequence[str] = ()
    """Members in the log that have left or were silent for too long."""
    is_joined: bool = False
    """Whether a client that is not in the log yet is about to join it by the classic protocol."""


def migration_policy(name: str) -> MigrationPolicy:
    """The policy of this name, which the configuration has checked."""
    return POLICIES[name]


def present_group(
    coordinator: GroupsContext, group_id: str, topics: Topics, policy: MigrationPolicy
) -> Present | Refusal:
    """A group to be changed by members of the consumer protocol, or why a classic group stays one."""
    held = coordinator.machine.groups.get(group_id)
    membership = None if held is None else held.membership
    group = membership if isinstance(membership, ConsumerGroup) else None
    if group is not None and not group.is_empty:
        return Present(group)
    coordinator.classic.follow(group_id)
    members = frozenset(coordinator.classic.members_of(group_id))
    classic = membership if isinstance(membership, ClassicGroup) and not membership.is_empty else None
    if classic is None and not members:
        return Present(group)
    fault = _fault(coordinator, group_id, len(members), policy)
    if fault is not None:
        return _refused(group_id, fault)
    if classic is None:
        return Present(group, is_joined=True)
    try:
        sizes = {name: topics.size(name) for name in topics_of(classic)}
        ids = [(name, size.topic_id) for name, size in sizes.items() if size is not None]
        made = from_classic(classic, dict(ids))
    except NotConvertible as error:
        return _refused(group_id, str(error))
    gone = [member_id for member_id in classic.members if member_id not in members]
    return Present(made, Upgrade(fingerprint(classic), ids), gone)


def _fault(coordinator: GroupsContext, group_id: str, members: int, policy: MigrationPolicy) -> str | None:
    if not policy.upgrades:
        return "online upgrade is disabled"
    if not coordinator.classic.consumes(group_id):
        return "the group does not use the consumer embedded protocol"
    if members > coordinator.context.config.groups.max_members:
        return "the group size exceeds the consumer group maximum size"
    return None


def _refused(group_id: str, fault: str) -> Refusal:
    log.info("group %r stays classic, though a member of the consumer protocol came: %s", group_id, fault)
    reason = f"Cannot upgrade classic group {group_id} to consumer group because {fault}."
    return Refusal(KafkaError.GROUP_ID_NOT_FOUND, reason)
