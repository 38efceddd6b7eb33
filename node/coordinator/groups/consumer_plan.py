"""The next state of a consumer group, planned from its present one and from its members' requests.

Pure: the leader plans, and the result goes into the log as one command, for any number of members. All
requests of a turn share one epoch and one target. First members join, change and leave; then, if that or the
topics require it, the epoch rises and a target is computed; then each member that sent a request takes a
step.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from strandline.node.coordinator.groups.consumer_admission import Admission
from strandline.node.coordinator.groups.consumer_classic import ClassicJoin, downgrade_of
from strandline.node.coordinator.groups.consumer_draft import Draft, size_of
from strandline.node.coordinator.groups.consumer_events import Answer, MemberEvent, Reply, TimerExpired
from strandline.node.coordinator.groups.consumer_matches import Matches, size_of_matches, within
from strandline.node.coordinator.groups.consumer_member import JOINING, LEAVING, MemberHeartbeat, reconciled
from strandline.node.coordinator.groups.consumer_topics import Topics, digest
from strandline.node.re2.automaton import InvalidPattern
from strandline.node.refusal import Refusal
from strandline.statemachine.groups.assignors import ASSIGNORS, DEFAULT_ASSIGNOR, Subscriber
from strandline.statemachine.groups.consumer_group import ConsumerGroup
from strandline.statemachine.groups.consumer_group_commands import (
    LEFT_FOR_A_WHILE,
    NOTHING,
    STABLE,
    ChangeConsumerGroup,
    ConsumerMember,
    Upgrade,
)
from strandline.statemachine.kafka_errors import KafkaError

MAX_GROUP_BYTES: Final = 16 * 1024 * 1024
"""Bound on a group's subscriptions in bytes, about: names, patterns, ids, and the patterns' matches."""

_log = logging.getLogger(__name__)


class Plan(NamedTuple):
    """The command to log (None: nothing), and the answer to each request once the command is applied."""

    change: ChangeConsumerGroup | None
    answers: list[Answer | None]
    growth: int
    """Bytes that the members' subscriptions and the matches of their patterns grow by."""


def plan(
    group_id: str,
    group: ConsumerGroup | None,
    events: Sequence[MemberEvent],
    topics: Topics,
    *,
    max_members: int,
    room: int,
    look: bool = True,
    upgrade: Upgrade | None = None,
    gone: Collection[str] = (),
    downgrades: bool = False,
) -> Plan:
    """Plan one turn; see the module.

    `look`: whether the topics may have changed since the group's last change. `room`: bytes by which
    subscriptions and matches may grow, with those of all other groups.

    With `upgrade` the group is the conversion of a classic one, without those of its members that are `gone`;
    it is converted if it has a member of the consumer protocol in the end. `downgrades`: whether it becomes a
    classic group when only members of that protocol are left.
    """
    taken = 0 if upgrade is None or group is None else sum(map(size_of, group.members.values()))
    turn = _Turn(group_id, group, topics, max_members, room - taken)
    draft = turn.draft
    for member_id in gone:
        draft.drop(member_id)
    answers: list[Answer | None] = [turn.take(event) for event in events]
    if turn.renewed or look:
        turn.look_at_topics()
    becomes_classic = (
        downgrades and downgrade_of(draft, topics, max_members, renewed=turn.renewed) is not None
    )
    if turn.renewed and not becomes_classic:
        turn.assign()
    accepted = [
        place
        for place, event in enumerate(events)
        if not isinstance(event, TimerExpired) and answers[place] is None
    ]
    for _ in range(2):  # again: the first member may wait for partitions that the last one revokes
        for place in accepted:
            turn.reconcile(events[place])
    for place in accepted:
        answers[place] = turn.reply(events[place])
    if upgrade is not None and draft.classic == draft.count:
        return Plan(None, answers, 0)  # all were turned away
    downgrade = downgrade_of(draft, topics, max_members, renewed=turn.renewed) if becomes_classic else None
    change = draft.change(upgrade, downgrade)
    if change is not None and downgrade is not None:
        assert group is not None
        held = sum(map(size_of, group.members.values())) + size_of_matches(group.matches)
        return Plan(change, answers, -held)
    return Plan(change, answers, taken + draft.growth)


def preferred_assignor(members: Sequence[ConsumerMember]) -> str:
    """The assignor that most members with a preference name."""
    votes = Counter(sorted(member.assignor for member in members if member.assignor))
    return votes.most_common(1)[0][0] if votes else DEFAULT_ASSIGNOR


class _Turn:
    """One turn of a group: requests in, a draft of its next state, answers out."""

    def __init__(
        self, group_id: str, group: ConsumerGroup | None, topics: Topics, max_members: int, room: int
    ) -> None:
        self._group_id = group_id
        self._there = group is not None
        self._group = group or ConsumerGroup()
        self.draft = Draft(group_id, self._group)
        self._topics = topics
        self._admission = Admission(group_id, self.draft, max_members)
        self._room = room
        self.renewed = False
        """Whether the target assignment has to be computed again."""

    # Events.

    def take(self, event: MemberEvent) -> Answer | None:
        """Apply a request to the draft: members join, change, leave. Returns an answer if that is all."""
        if isinstance(event, TimerExpired):
            if self.draft.member(event.member_id) is not None:
                self.draft.drop(event.member_id)
                self.renewed = True
            return None
        if isinstance(event, ClassicJoin):
            return self._admit(event, self._admission.classic_member(event))
        if not self._there and event.epoch != JOINING:
            return Refusal(KafkaError.GROUP_ID_NOT_FOUND, f"Group {self._group_id} not found.")
        return self._leave(event) if event.epoch < 0 else self._admit(event, self._admission.member(event))

    def _admit(self, event: MemberHeartbeat | ClassicJoin, member: ConsumerMember | Refusal) -> Answer | None:
        """Apply a member's subscription to the draft, or refuse it."""
        if isinstance(member, Refusal):
            return member
        updated = event.updated(member)
        refusal = self._refuse_subscription(member, updated)
        if refusal is not None:
            return refusal
        if (updated.topics, updated.pattern) != (member.topics, member.pattern) or not self._group.epoch:
            self.renewed = True
        if member.member_id != event.member_id:
            # If another member of this group has the id, `replace` removes that member.
            self.renewed = self.renewed or self.draft.member(event.member_id) is not None
            self.draft.replace(member.member_id, updated._replace(member_id=event.member_id))
        else:
            self.draft.put(updated)
        return None

    def _refuse_subscription(self, member: ConsumerMember, updated: ConsumerMember) -> Refusal | None:
        """The reason to refuse a member's new subscription: its pattern is invalid, or there is no room."""
        more = size_of(updated) - size_of(member)
        if updated.pattern != member.pattern:
            try:
                names = self._topics.matching(updated.pattern) if updated.pattern else ()
            except InvalidPattern as error:
                reason = (
                    f"SubscribedTopicRegex `{updated.pattern}` is not a valid regular expression: {error}."
                )
                return Refusal(KafkaError.INVALID_REGULAR_EXPRESSION, reason)
            matched = self.draft.matched.cost(member.pattern, updated.pattern, names)
            if matched > 0 and matched > self.draft.matched.room:
                reason = f"SubscribedTopicRegex `{updated.pattern}` matches too much for one group."
                return Refusal(KafkaError.GROUP_MAX_SIZE_REACHED, reason)
            more += matched
        if more > 0 and self.draft.size() + more > MAX_GROUP_BYTES:
            reason = f"The members of the group have more than {MAX_GROUP_BYTES} bytes of subscriptions."
            return Refusal(KafkaError.GROUP_MAX_SIZE_REACHED, reason)
        if more > 0 and self.draft.growth + more > self._room:
            reason = "The subscriptions of all groups of the coordinator take too many bytes."
            return Refusal(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, reason)
        return None

    def _leave(self, event: MemberHeartbeat) -> Answer:
        member = self._admission.leaving(event)
        if isinstance(member, Refusal):
            return member
        if event.epoch == LEAVING:
            self.draft.drop(member.member_id)
            self.renewed = True
        else:  # the partitions that it was to revoke are free; it keeps the others until its session ends
            self.draft.put(member._replace(epoch=LEFT_FOR_A_WHILE, state=STABLE, revoking=NOTHING))
        return Reply(event.member_id, event.epoch, STABLE, None)

    # The target.

    def look_at_topics(self) -> None:
        """Compare the topics with those of the present target; if they differ, it is computed again."""
        members = self.draft.all_members()
        patterns = {member.pattern for member in members if member.pattern}
        matches = self._bounded(self._topics.matches(patterns, self._group.matches))
        names = {name for matched in matches.values() for name in matched}
        for topics in {member.topics for member in members}:
            names.update(topics)
        metadata = digest(sorted(names), self._topics) if members else b""
        if (metadata, matches) != (self.draft.metadata, self.draft.matches):
            self.draft.metadata, self.draft.matches, self.renewed = metadata, matches, True

    def _bounded(self, matches: Matches) -> Matches:
        """The new matches of the patterns, within the group's bounds: topics of others cannot exceed them."""
        draft, before = self.draft, self._group.matches
        if matches == before:
            return before
        room = min(draft.matched.room, MAX_GROUP_BYTES - draft.size(), self._room - draft.growth)
        bounded = within(draft.matched.total + room, matches, before)
        late = sum(bounded[pattern] != matches[pattern] for pattern in matches)
        if late:
            _log.warning(
                "group %r: %d patterns do not follow new topics: the limit of matched topics is reached",
                self._group_id,
                late,
            )
        draft.matched.settle(bounded)
        return bounded

    def assign(self) -> None:
        """Raise the epoch and make the target for it."""
        self.draft.epoch = self._group.epoch + 1
        members = self.draft.all_members()
        sizes: dict[bytes, int] = {}
        topics_of: dict[tuple[tuple[str, ...], str], tuple[bytes, ...]] = {}
        subscribers = []
        for member in members:
            subscription = member.topics, member.pattern
            if subscription not in topics_of:
                topics_of[subscription] = self._subscribed(subscription, sizes)
            rank = member.instance_id or member.member_id
            target = self.draft.target(member.member_id)
            subscribers.append(Subscriber(member.member_id, rank, topics_of[subscription], target))
        targets = ASSIGNORS[preferred_assignor(members)](subscribers, sizes)
        for member in members:
            self.draft.aim(member.member_id, targets.get(member.member_id, NOTHING))

    def _subscribed(
        self, subscription: tuple[tuple[str, ...], str], sizes: dict[bytes, int]
    ) -> tuple[bytes, ...]:
        names, pattern = subscription
        found = []
        for name in sorted({*names, *self.draft.matches.get(pattern, ())}):
            size = self._topics.size(name)
            if size is not None:
                sizes[size.topic_id] = size.partitions
                found.append(size.topic_id)
        return tuple(found)

    # Answers.

    def reconcile(self, event: MemberEvent) -> None:
        """Let a member that sent a request take its step."""
        member = self.draft.member(event.member_id)
        if member is not None and not isinstance(event, TimerExpired):
            target = self.draft.target(member.member_id)
            reported = member.epoch if isinstance(event, ClassicJoin) else event.epoch
            owner = self.draft.owner
            self.draft.put(reconciled(member, event.owned, reported, self.draft.epoch, target, owner))

    def reply(self, event: MemberEvent) -> Answer:
        """The answer to a request; has the assignment if it is new to the member, or the request full."""
        member = self.draft.member(event.member_id)
        if member is None or isinstance(event, TimerExpired):
            return Refusal(KafkaError.UNKNOWN_MEMBER_ID, f"Member {event.member_id} has left.")
        if isinstance(event, ClassicJoin):  # the answer to its SyncGroup has its assignment
            return Reply(member.member_id, member.epoch, member.state, None)
        before = self._group.members.get(event.member_id)
        knows = before is not None and (event.epoch, member.assigned) == (before.epoch, before.assigned)
        return Reply(
            member.member_id,
            member.epoch,
            member.state,
            None if knows and not event.full else member.assigned,
        )
