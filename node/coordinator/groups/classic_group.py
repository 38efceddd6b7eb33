"""The requests and timers of one classic group while this node coordinates it.

A call reports one event; its effects go to `Environment`, so nothing here waits, and a test chooses the
order of events. The rules between one generation and the next are in classic_rebalance.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from strandline.node.coordinator.groups.classic_members import LiveMember, joining_member
from strandline.node.coordinator.groups.classic_rebalance import Rebalancing
from strandline.node.coordinator.groups.classic_state import (
    SESSION,
    SYNC,
    UNKNOWN_MEMBER,
    ClassicGroupState,
    JoinRequest,
    JoinResponse,
    Leaving,
    SyncRequest,
    SyncResponse,
)
from strandline.node.refusal import Cause
from strandline.statemachine.groups.group_commands import ReplaceStaticMember
from strandline.statemachine.kafka_errors import KafkaError

log = logging.getLogger(__name__)


class LiveGroup(Rebalancing):
    """The volatile part of a group; the runtime makes it when there is something to wait for.

    A request that may wait is answered by `Environment.answer`, under its ticket; others by value.
    """

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing in it that the log does not have."""
        on_the_way = len(self.members) or self.members.pending or self._deciding or self._unlogged
        return self.state is ClassicGroupState.EMPTY and not on_the_way

    def restore(
        self, generation: int, protocol_type: str, protocol: str, leader: str, members: Sequence[LiveMember]
    ) -> None:
        """Take up a generation with members that the log has; it counts as assigned if all members synced.

        Every member gets its full session timeout again. A generation without a leader was a consumer group
        before: all its members have to join again, because their target assignment differs from what they
        own.
        """
        self.generation, self.leader = generation, leader
        self.protocol_type, self.protocol = protocol_type, protocol
        for member in members:
            member.in_generation = True
            self.members.add(member)
            self._alive(member)
        # The table has no way into these states from here: another leader brought the group into them.
        if self.members.all_synced:
            self.state = ClassicGroupState.STABLE
        else:
            self.state = ClassicGroupState.COMPLETING_REBALANCE
            self._environment.set_timer(SYNC, "", self._longest_rebalance())
        if leader == UNKNOWN_MEMBER:
            self._prepare("it was a consumer group until now")

    # Joining.

    def join(self, request: JoinRequest, ticket: int) -> None:
        """A JoinGroup: answered now, or when the join phase is complete and its generation decided."""
        present = self.members.get(request.member_id) or (
            self.members.of_instance(request.instance_id) if request.member_id == UNKNOWN_MEMBER else None
        )
        error = self._refusal(request, present)
        if error is not None:
            self._environment.answer(ticket, JoinResponse(error, request.member_id))
        elif present is not None and self._sheds(present):
            self._environment.answer(ticket, JoinResponse(KafkaError.GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER))
            self._remove(present)
            self._go_on_without("a member was one too many")
        elif request.member_id == UNKNOWN_MEMBER:
            self._join_unknown(request, ticket)
        elif request.member_id in self.members.pending:
            self._add(request, request.member_id, ticket)
        else:
            self._rejoin(request, ticket)

    def _sheds(self, member: LiveMember) -> bool:
        """Whether the group is full with the members that have joined (the limit fell), without this one."""
        joining = self.state is ClassicGroupState.PREPARING_REBALANCE and not member.joined
        return joining and self.members.joined >= self._limits.max_members

    def _refusal(self, request: JoinRequest, present: LiveMember | None) -> KafkaError | None:
        if not self._limits.min_session <= request.session <= self._limits.max_session:
            return KafkaError.INVALID_SESSION_TIMEOUT
        pending = request.member_id in self.members.pending and request.instance_id is None
        size, had = joining_member(request, request.member_id).size, 0 if present is None else present.size
        # The next generation forgets what was assigned: it keeps no member out.
        said = 0 if present is None else had - len(present.assignment)
        full = len(self.members) + len(self.members.pending) >= self._limits.max_members
        too_much = size > said and self.members.sent_bytes + size - said > self._limits.max_bytes
        if too_much or (full and present is None and not pending):
            return KafkaError.GROUP_MAX_SIZE_REACHED
        if size > had and not self._environment.has_room(size - had):
            return KafkaError.COORDINATOR_LOAD_IN_PROGRESS
        if not self._supports(request.protocol_type, [name for name, _ in request.protocols]):
            return KafkaError.INCONSISTENT_GROUP_PROTOCOL
        if pending or request.member_id == UNKNOWN_MEMBER:
            return None
        return self.members.refusal(request.member_id, request.instance_id)

    def _supports(self, protocol_type: str, names: Sequence[str]) -> bool:
        if not protocol_type or not names:
            return False
        fits = not len(self.members) or protocol_type == self.protocol_type
        return fits and self.members.supports(names)

    def _join_unknown(self, request: JoinRequest, ticket: int) -> None:
        member_id = self._environment.new_member_id(request.instance_id or request.client_id)
        old = self.members.of_instance(request.instance_id)
        if old is not None:
            self._return(old, request, member_id, ticket)
        elif request.instance_id is None and request.takes_member_id:
            self.members.give_out(member_id)
            self._environment.set_timer(SESSION, member_id, request.session)
            self._environment.answer(ticket, JoinResponse(KafkaError.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(request, member_id, ticket)

    def _add(self, request: JoinRequest, member_id: str, ticket: int) -> None:
        self.members.take_back(member_id)
        if not len(self.members):
            self.protocol_type = request.protocol_type
        member = joining_member(request, member_id)
        self.members.add(member)
        self._hold_join(member, ticket)
        self._newcomers = True
        self._go_on_joining("a member joined")

    def _rejoin(self, request: JoinRequest, ticket: int) -> None:
        member = self._member(request.member_id)
        same = [*member.protocols] == [*request.protocols]
        self._hold_join(member, ticket)
        self.members.update(member, request)
        completing = self.state is ClassicGroupState.COMPLETING_REBALANCE and same
        if completing and self._starting:
            pass  # It is in the generation that is being decided, and is answered with the others.
        elif completing or (
            self.state is ClassicGroupState.STABLE and same and member.member_id != self.leader
        ):
            # It did not get its answer, or only asks: the assignment stays as it is.
            self._tell_generation(member)
            self._alive(member)
        else:
            # A leader joins again because of changes that the group cannot see, say in partition counts.
            self._go_on_joining("a member joined again")

    def _return(self, old: LiveMember, request: JoinRequest, member_id: str, ticket: int) -> None:
        """Replace a static member that comes under a new member id; requests under the old id are fenced."""
        self._end_join(old, KafkaError.FENCED_INSTANCE_ID)
        self._end_sync(old, SyncResponse(KafkaError.FENCED_INSTANCE_ID))
        self._environment.cancel_timer(SESSION, old.member_id)
        self.members.remove(old)
        member = joining_member(request, member_id)
        member.assignment, member.synced, member.in_generation = old.assignment, old.synced, old.in_generation
        self.members.add(member)
        self._hold_join(member, ticket)
        if self.leader == old.member_id:
            self.leader = member_id
        if old.in_generation:
            # In every state: until the next generation, commits of the old process would be accepted. The log
            # checks them by its own generation, which is another if this group's next one was not logged.
            generation = self.generation if self._starting else self._environment.logged_generation()[0]
            self._decide(ReplaceStaticMember(self.group_id, generation, old.member_id, member.logged()))
        same_votes = [name for name, _ in old.protocols] == [name for name, _ in member.protocols]
        if self.state is not ClassicGroupState.STABLE or not (
            same_votes or self.members.selected() == self.protocol
        ):
            # The leader may be assigning to the old id, or by a protocol that is not to stay.
            self._go_on_joining("a static member returned")

    # Syncing.

    def sync(self, request: SyncRequest, ticket: int) -> None:
        """A SyncGroup: answered now, or when the leader's assignment is decided."""
        error = self.members.refusal(request.member_id, request.instance_id)
        if error is None and request.generation != self.generation:
            error = KafkaError.ILLEGAL_GENERATION
        if error is None and (
            _differs(request.protocol_type, self.protocol_type) or _differs(request.protocol, self.protocol)
        ):
            error = KafkaError.INCONSISTENT_GROUP_PROTOCOL
        if error is None and (self.state is ClassicGroupState.PREPARING_REBALANCE or self._starting):
            error = KafkaError.REBALANCE_IN_PROGRESS
        if error is not None:
            self._environment.answer(ticket, SyncResponse(error))
            return
        member = self._member(request.member_id)
        self.members.set_synced(member, True)
        if self.members.all_synced:
            self._environment.cancel_timer(SYNC, "")
        if self.state is ClassicGroupState.STABLE:
            self._environment.answer(ticket, self._assignment(member))
            self._alive(member)
            return
        self._hold_sync(member, ticket)
        if member.member_id == self.leader and not self._deciding:
            self._assign(request.assignments)

    # Living and leaving.

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> KafkaError | None:
        """Handle a Heartbeat: None, or the error that makes the member act."""
        error = self.members.refusal(member_id, instance_id)
        if error is not None:
            return error
        if generation != self.generation:
            return KafkaError.ILLEGAL_GENERATION
        self._alive(self._member(member_id))
        preparing = self.state is ClassicGroupState.PREPARING_REBALANCE
        return KafkaError.REBALANCE_IN_PROGRESS if preparing else None

    def restart_session(self, member_id: str) -> None:
        """Restart a member's session timeout after another request."""
        member = self.members.get(member_id)
        if member is not None:
            self._alive(member)

    def leave(self, leaving: Sequence[Leaving]) -> list[Cause | None]:
        """Handle a LeaveGroup: an error for each member, None for one that is removed."""
        members, pending = len(self.members), len(self.members.pending)
        errors: list[Cause | None] = [self._leave(one) for one in leaving]
        if len(self.members) < members:
            self._go_on_without("members left")
        elif len(self.members.pending) < pending and self.state is ClassicGroupState.PREPARING_REBALANCE:
            self._maybe_complete_join()
        return errors

    def _leave(self, one: Leaving) -> KafkaError | None:
        if one.member_id == UNKNOWN_MEMBER:
            member = self.members.of_instance(one.instance_id)
            if member is None:
                return KafkaError.UNKNOWN_MEMBER_ID
        elif self.members.take_back(one.member_id):
            self._environment.cancel_timer(SESSION, one.member_id)
            return None
        else:
            refusal = self.members.refusal(one.member_id, one.instance_id)
            if refusal is not None:
                return refusal
            member = self._member(one.member_id)
        self._remove(member)
        return None

    def abandon(self, ticket: int) -> None:
        """Forget a request whose connection is gone: its answer has no receiver any more.

        A member that had joined stays joined, as with Kafka; but from now on its session timeout runs.
        """
        member = self._waiting.pop(ticket, None)
        if member is not None:
            if member.join == ticket:
                member.join = None
            else:
                member.sync = None
            self._alive(member)

    # Time.

    def session_over(self, member_id: str) -> None:
        """Remove a member that was silent for too long, or a member id that was given out and never used."""
        member = self.members.get(member_id)
        if member is not None:
            log.debug("group %r: member %r was silent for %g s", self.group_id, member_id, member.session)
            self._remove(member)
            self._go_on_without("a member was silent")
        elif self.members.take_back(member_id) and self.state is ClassicGroupState.PREPARING_REBALANCE:
            self._maybe_complete_join()

    def join_over(self) -> None:
        """The time of the join phase is over, or an empty generation is to be logged again."""
        if self.state is ClassicGroupState.EMPTY:
            self._empty_generation()
        else:
            self._join_time_over()

    def sync_over(self) -> None:
        """End the sync phase: members that did not ask for their assignment in time are removed."""
        for member in [member for member in self.members if not member.synced]:
            log.debug("group %r: member %r never synced", self.group_id, member.member_id)
            self._remove(member)
        self._prepare("members never synced")

    def _member(self, member_id: str) -> LiveMember:
        member = self.members.get(member_id)
        assert member is not None
        return member


def _differs(said: str | None, present: str) -> bool:
    return said is not None and said != present
