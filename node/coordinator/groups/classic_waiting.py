"""Waiting requests of a classic group, and their answers: each request is answered exactly once.

A member has at most one JoinGroup and one SyncGroup that wait. While one waits, the member's session does not
expire; the answer restarts its session timeout. All answers are given in this module, so no rule answers a
request twice or never.
"""

from __future__ import annotations

from strandline.node.coordinator.groups.classic_members import LiveMember, Members
from strandline.node.coordinator.groups.classic_state import (
    COMES_FROM,
    SESSION,
    UNKNOWN_MEMBER,
    ClassicGroupState,
    Environment,
    JoinResponse,
    SyncResponse,
)
from strandline.node.refusal import Cause
from strandline.statemachine.kafka_errors import KafkaError


class Waiting:
    """A group's state and its waiting requests; the subclasses have the rules."""

    def __init__(self, group_id: str, environment: Environment) -> None:
        self.group_id = group_id
        self.state = ClassicGroupState.EMPTY
        self.generation = 0
        """The newest that was decided, or is being decided."""
        self.protocol_type = ""
        self.protocol = ""
        self.leader = ""
        self.members = Members()
        self._environment = environment
        self._waiting: dict[int, LiveMember] = {}
        """Members whose request waits, by ticket."""

    def _hold_join(self, member: LiveMember, ticket: int) -> None:
        """The member has joined, and is answered later."""
        self._end_join(member, KafkaError.REBALANCE_IN_PROGRESS)
        self._environment.cancel_timer(SESSION, member.member_id)
        self._waiting[ticket] = member
        member.join = ticket
        self.members.set_joined(member, True)

    def _hold_sync(self, member: LiveMember, ticket: int) -> None:
        self._end_sync(member, SyncResponse(KafkaError.REBALANCE_IN_PROGRESS))
        self._environment.cancel_timer(SESSION, member.member_id)
        self._waiting[ticket] = member
        member.sync = ticket

    def _tell_generation(self, member: LiveMember, leader: str | None = None, skip: bool = False) -> None:
        if member.join is None:
            return
        ticket, member.join = member.join, None
        del self._waiting[ticket]
        leader = self.leader if leader is None else leader
        members = (
            [(each.member_id, each.instance_id, each.metadata(self.protocol)) for each in self.members]
            if leader == member.member_id
            else ()
        )
        known = (member.member_id, self.generation, self.protocol_type, self.protocol, leader, skip, members)
        self._environment.answer(ticket, JoinResponse(None, *known))

    def _end_join(self, member: LiveMember, error: Cause) -> None:
        if member.join is not None:
            ticket, member.join = member.join, None
            del self._waiting[ticket]
            member_id = UNKNOWN_MEMBER if error is KafkaError.UNKNOWN_MEMBER_ID else member.member_id
            self._environment.answer(ticket, JoinResponse(error, member_id))

    def _end_sync(self, member: LiveMember, answer: SyncResponse) -> None:
        if member.sync is not None:
            ticket, member.sync = member.sync, None
            del self._waiting[ticket]
            self._environment.answer(ticket, answer)

    def _assignment(self, member: LiveMember) -> SyncResponse:
        return SyncResponse(None, self.protocol_type, self.protocol, member.assignment)

    def _alive(self, member: LiveMember) -> None:
        """Restart the member's session timeout, unless a request of it waits: it cannot expire then."""
        if member.join is None and member.sync is None:
            self._environment.set_timer(SESSION, member.member_id, member.session)

    def _longest_rebalance(self) -> float:
        return max((member.rebalance for member in self.members), default=0.0)

    def _enter(self, state: ClassicGroupState) -> None:
        assert self.state in COMES_FROM[state], f"{self.state.value} is never followed by {state.value}"
        self.state = state

    def _remove(self, member: LiveMember) -> None:
        self._environment.cancel_timer(SESSION, member.member_id)
        self._end_join(member, KafkaError.UNKNOWN_MEMBER_ID)
        self._end_sync(member, SyncResponse(KafkaError.UNKNOWN_MEMBER_ID))
        self.members.remove(member)
