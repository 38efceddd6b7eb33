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
from dataclasses import dataclass
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from strandline.node.coordinator.groups.consumer_automaton import InvalidPattern
from strandline.node.coordinator.groups.consumer_classic import ClassicJoin, downgrade_of
from strandline.node.coordinator.groups.consumer_draft import Draft, size_of
from strandline.node.coordinator.groups.consumer_entrance import Entrance
from strandline.node.coordinator.groups.consumer_matches import Matches, size_of_matches, within
from strandline.node.coordinator.groups.consumer_member import (
    JOINING,
    LEAVING,
    Heartbeat,
    Refusal,
    reconciled,
)
from strandline.node.coordinator.groups.consumer_topics import Topics, digest
from strandline.statemachine.groups.assignors import ASSIGNORS, DEFAULT_ASSIGNOR, Subscriber
from strandline.statemachine.groups.consumer_group import ConsumerGroup
from strandline.statemachine.groups.consumer_group_commands import (
    LEFT_FOR_A_WHILE,
    NOTHING,
    STABLE,
    Assignment,
    ChangeConsumerGroup,
    ConsumerMember,
    Upgrade,
)

MAX_GROUP_BYTES: Final = 16 * 1024 * 1024
"""Bound on a group's subscriptions in bytes, about: names, patterns, ids, and the patterns' matches."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Overdue:
    """A member's time is over: it was not heard, or did not let go of partitions."""

    member_id: str
    timer: str
    """The name of the timer that ended."""


class Reply(NamedTuple):
    """The answer to a member; no assignment: the one that it has still holds."""

    member_id: str
    epoch: int
    state: int
    assignment: Assignment | None


Word = Heartbeat | ClassicJoin | Overdue
Answer = Reply | Refusal


class Plan(NamedTuple):
    """The command to log (None: nothing), and the answer to each request once the command is applied."""

    change: ChangeConsumerGroup | None
    answers: list[Answer | None]
    growth: int
    """Bytes that the members' subscriptions and the matches of their patterns grow by."""


def plan(
    group_id: str,
    group: ConsumerGroup | None,
    words: Sequence[Word],
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
    answers: list[Answer | None] = [turn.take(word) for word in words]
    if turn.renewed or look:
        turn.look_at_topics()
    becomes_classic = (
        downgrades and downgrade_of(draft, topics, max_members, renewed=turn.renewed) is not None
    )
    if turn.renewed and not becomes_classic:
        turn.assign()
    spoke = [
        place for place, word in enumerate(words) if not isinstance(word, Overdue) and answers[place] is None
    ]
    for _ in range(2):  # again, as what the last of them let go of may be the first one's
        for place in spoke:
            turn.reconcile(words[place])
    for place in spoke:
        answers[place] = turn.reply(words[place])
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
        self._entrance = Entrance(group_id, self.draft, max_members)
        self._room = room
        self.renewed = False
        """Whether the target assignment has to be computed again."""

    # What members say.

    def take(self, word: Word) -> Answer | None:
        """Apply a request to the draft: members join, change, leave. Returns an answer if that is all."""
        if isinstance(word, Overdue):
            if self.draft.member(word.member_id) is not None:
                self.draft.drop(word.member_id)
                self.renewed = True
            return None
        if isinstance(word, ClassicJoin):
            return self._admit(word, self._entrance.classic_member(word))
        if not self._there and word.epoch != JOINING:
            return Refusal(ErrorCode.group_id_not_found, f"Group {self._group_id} not found.")
        return self._leave(word) if word.epoch < 0 else self._admit(word, self._entrance.member(word))

    def _admit(self, word: Heartbeat | ClassicJoin, member: ConsumerMember | Refusal) -> Answer | None:
        """Apply a member's subscription to the draft, or refuse it."""
        if isinstance(member, Refusal):
            return member
        updated = word.updated(member)
        refusal = self._refuse_subscription(member, updated)
        if refusal is not None:
            return refusal
        if (updated.topics, updated.pattern) != (member.topics, member.pattern) or not self._group.epoch:
            self.renewed = True
        if member.member_id != word.member_id:
            # If another member of this group has the id, `replace` removes that member.
            self.renewed = self.renewed or self.draft.member(word.member_id) is not None
            self.draft.replace(member.member_id, updated._replace(member_id=word.member_id))
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
                return Refusal(ErrorCode.invalid_regular_expression, reason)
            matched = self.draft.matched.cost(member.pattern, updated.pattern, names)
            if matched > 0 and matched > self.draft.matched.room:
                reason = f"SubscribedTopicRegex `{updated.pattern}` matches too much for one group."
                return Refusal(ErrorCode.group_max_size_reached, reason)
            more += matched
        if more > 0 and self.draft.size() + more > MAX_GROUP_BYTES:
            reason = f"The members of the group have more than {MAX_GROUP_BYTES} bytes of subscriptions."
            return Refusal(ErrorCode.group_max_size_reached, reason)
        if more > 0 and self.draft.growth + more > self._room:
            reason = "The members of all groups of the coordinator have too much to say."
            return Refusal(ErrorCode.coordinator_load_in_progress, reason)
        return None

    def _leave(self, word: Heartbeat) -> Answer:
        member = self._entrance.leaving(word)
        if isinstance(member, Refusal):
            return member
        if word.epoch == LEAVING:
            self.draft.drop(member.member_id)
            self.renewed = True
        else:  # it is gone, so what it was to let go of is free; what it has it keeps until its session ends
            self.draft.put(member._replace(epoch=LEFT_FOR_A_WHILE, state=STABLE, revoking=NOTHING))
        return Reply(word.member_id, word.epoch, STABLE, None)

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

    # What comes of it.

    def reconcile(self, word: Word) -> None:
        """Let a member that spoke take its step."""
        member = self.draft.member(word.member_id)
        if member is not None and not isinstance(word, Overdue):
            target = self.draft.target(member.member_id)
            spoken = member.epoch if isinstance(word, ClassicJoin) else word.epoch
            owner = self.draft.owner
            self.draft.put(reconciled(member, word.owned, spoken, self.draft.epoch, target, owner))

    def reply(self, word: Word) -> Answer:
        """The answer to a request; has the assignment if it is new to the member, or the request full."""
        member = self.draft.member(word.member_id)
        if member is None or isinstance(word, Overdue):
            return Refusal(ErrorCode.unknown_member_id, f"Member {word.member_id} has left.")
        if isinstance(word, ClassicJoin):  # the answer to its SyncGroup has its assignment
            return Reply(member.member_id, member.epoch, member.state, None)
        before = self._group.members.get(word.member_id)
        knows = before is not None and (word.epoch, member.assigned) == (before.epoch, before.assigned)
        return Reply(
            member.member_id,
            member.epoch,
            member.state,
            None if knows and not word.full else member.assigned,
        )
