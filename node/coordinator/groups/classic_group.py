"""The requests and timers of one classic group while this node coordinates it.

A call reports one event; its effects go to `Surroundings`, so nothing here waits, and a test chooses the
order of events. The rules between one generation and the next are in classic_rebalance.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kio.schema.errors import ErrorCode

from strandline.node.coordinator.groups.classic_members import LiveMember, asked
from strandline.node.coordinator.groups.classic_rebalance import Rebalancing
from strandline.node.coordinator.groups.classic_state import (
    SESSION,
    SYNC,
    UNKNOWN_MEMBER,
    JoinAsk,
    Joined,
    Leaving,
    State,
    SyncAsk,
    Synced,
)
from strandline.statemachine.groups.group_commands import ReplaceStaticMember

log = logging.getLogger(__name__)


class LiveGroup(Rebalancing):
    """The volatile part of a group; the runtime makes it when there is something to wait for.

    A request that may wait is answered by `Surroundings.answer`, under its ticket; others by value.
    """

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing in it that the log does not have."""
        on_the_way = len(self.members) or self.members.pending or self._deciding or self._unlogged
        return self.state is State.EMPTY and not on_the_way

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
        # The only way into these states that their table does not have: the group came into them elsewhere.
        if self.members.all_synced:
            self.state = State.STABLE
        else:
            self.state = State.COMPLETING_REBALANCE
            self._around.set_timer(SYNC, "", self._longest_rebalance())
        if leader == UNKNOWN_MEMBER:
            self._prepare("it was a consumer group until now")

    # Joining.

    def join(self, ask: JoinAsk, ticket: int) -> None:
        """A JoinGroup: answered now, or when the join phase is complete and its generation decided."""
        present = self.members.get(ask.member_id) or (
            self.members.of_instance(ask.instance_id) if ask.member_id == UNKNOWN_MEMBER else None
        )
        code = self._refusal(ask, present)
        if code is not None:
            self._around.answer(ticket, Joined(code, ask.member_id))
        elif present is not None and self._sheds(present):
            self._around.answer(ticket, Joined(ErrorCode.group_max_size_reached, UNKNOWN_MEMBER))
            self._remove(present)
            self._go_on_without("a member was one too many")
        elif ask.member_id == UNKNOWN_MEMBER:
            self._join_unknown(ask, ticket)
        elif ask.member_id in self.members.pending:
            self._add(ask, ask.member_id, ticket)
        else:
            self._rejoin(ask, ticket)

    def _sheds(self, member: LiveMember) -> bool:
        """Whether the group is full with the members that have joined (the limit fell), without this one."""
        joining = self.state is State.PREPARING_REBALANCE and not member.joined
        return joining and self.members.joined >= self._limits.max_members

    def _refusal(self, ask: JoinAsk, present: LiveMember | None) -> ErrorCode | None:
        if not self._limits.min_session <= ask.session <= self._limits.max_session:
            return ErrorCode.invalid_session_timeout
        pending = ask.member_id in self.members.pending and ask.instance_id is None
        size, had = asked(ask, ask.member_id).size, 0 if present is None else present.size
        # The next generation forgets what was assigned: it keeps no member out.
        said = 0 if present is None else had - len(present.assignment)
        full = len(self.members) + len(self.members.pending) >= self._limits.max_members
        too_much = size > said and self.members.said + size - said > self._limits.max_bytes
        if too_much or (full and present is None and not pending):
            return ErrorCode.group_max_size_reached
        if size > had and not self._around.has_room(size - had):
            return ErrorCode.coordinator_load_in_progress
        if not self._supports(ask.protocol_type, [name for name, _ in ask.protocols]):
            return ErrorCode.inconsistent_group_protocol
        if pending or ask.member_id == UNKNOWN_MEMBER:
            return None
        return self.members.refusal(ask.member_id, ask.instance_id)

    def _supports(self, protocol_type: str, names: Sequence[str]) -> bool:
        if not protocol_type or not names:
            return False
        fits = not len(self.members) or protocol_type == self.protocol_type
        return fits and self.members.supports(names)

    def _join_unknown(self, ask: JoinAsk, ticket: int) -> None:
        member_id = self._around.new_member_id(ask.instance_id or ask.client_id)
        old = self.members.of_instance(ask.instance_id)
        if old is not None:
            self._return(old, ask, member_id, ticket)
        elif ask.instance_id is None and ask.takes_member_id:
            self.members.give_out(member_id)
            self._around.set_timer(SESSION, member_id, ask.session)
            self._around.answer(ticket, Joined(ErrorCode.member_id_required, member_id))
        else:
            self._add(ask, member_id, ticket)

    def _add(self, ask: JoinAsk, member_id: str, ticket: int) -> None:
        self.members.take_back(member_id)
        if not len(self.members):
            self.protocol_type = ask.protocol_type
        member = asked(ask, member_id)
        self.members.add(member)
        self._hold_join(member, ticket)
        self._newcomers = True
        self._go_on_joining("a member joined")

    def _rejoin(self, ask: JoinAsk, ticket: int) -> None:
        member = self._member(ask.member_id)
        same = [*member.protocols] == [*ask.protocols]
        self._hold_join(member, ticket)
        self.members.update(member, ask)
        completing = self.state is State.COMPLETING_REBALANCE and same
        if completing and self._starting:
            pass  # It is in the generation that is being decided, and is answered with the others.
        elif completing or (self.state is State.STABLE and same and member.member_id != self.leader):
            # It did not get its answer, or only asks: the assignment stays as it is.
            self._tell_generation(member)
            self._alive(member)
        else:
            # A leader joins again because of changes that the group cannot see, say in partition counts.
            self._go_on_joining("a member joined again")

    def _return(self, old: LiveMember, ask: JoinAsk, member_id: str, ticket: int) -> None:
        """Replace a static member that comes under a new member id; requests under the old id are fenced."""
        self._end_join(old, ErrorCode.fenced_instance_id)
        self._end_sync(old, Synced(ErrorCode.fenced_instance_id))
        self._around.cancel_timer(SESSION, old.member_id)
        self.members.remove(old)
        member = asked(ask, member_id)
        member.assignment, member.synced, member.in_generation = old.assignment, old.synced, old.in_generation
        self.members.add(member)
        self._hold_join(member, ticket)
        if self.leader == old.member_id:
            self.leader = member_id
        if old.in_generation:
            # In every state: until the next generation what the zombie commits would be taken. The log judges
            # it by its own generation, which is not this group's where the next one could not be logged.
            generation = self.generation if self._starting else self._around.logged_generation()[0]
            self._decide(ReplaceStaticMember(self.group_id, generation, old.member_id, member.logged()))
        same_votes = [name for name, _ in old.protocols] == [name for name, _ in member.protocols]
        if self.state is not State.STABLE or not (same_votes or self.members.selected() == self.protocol):
            # The leader may be assigning to the old id, or by a protocol that is not to stay.
            self._go_on_joining("a static member returned")

    # Syncing.

    def sync(self, ask: SyncAsk, ticket: int) -> None:
        """A SyncGroup: answered now, or when the leader's assignment is decided."""
        code = self.members.refusal(ask.member_id, ask.instance_id)
        if code is None and ask.generation != self.generation:
            code = ErrorCode.illegal_generation
        if code is None and (
            _differs(ask.protocol_type, self.protocol_type) or _differs(ask.protocol, self.protocol)
        ):
            code = ErrorCode.inconsistent_group_protocol
        if code is None and (self.state is State.PREPARING_REBALANCE or self._starting):
            code = ErrorCode.rebalance_in_progress
        if code is not None:
            self._around.answer(ticket, Synced(code))
            return
        member = self._member(ask.member_id)
        self.members.set_synced(member, True)
        if self.members.all_synced:
            self._around.cancel_timer(SYNC, "")
        if self.state is State.STABLE:
            self._around.answer(ticket, self._assignment(member))
            self._alive(member)
            return
        self._hold_sync(member, ticket)
        if member.member_id == self.leader and not self._deciding:
            self._assign(ask.assignments)

    # Living and leaving.

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Handle a Heartbeat: NONE, or the error that makes the member act."""
        code = self.members.refusal(member_id, instance_id)
        if code is not None:
            return code
        if generation != self.generation:
            return ErrorCode.illegal_generation
        self._alive(self._member(member_id))
        preparing = self.state is State.PREPARING_REBALANCE
        return ErrorCode.rebalance_in_progress if preparing else ErrorCode.none

    def heard(self, member_id: str) -> None:
        """A member showed by something else that it lives."""
        member = self.members.get(member_id)
        if member is not None:
            self._alive(member)

    def leave(self, leaving: Sequence[Leaving]) -> list[ErrorCode]:
        """Handle a LeaveGroup: an error code for each member, NONE for a member that is removed."""
        members, pending = len(self.members), len(self.members.pending)
        codes = [self._leave(one) for one in leaving]
        if len(self.members) < members:
            self._go_on_without("members left")
        elif len(self.members.pending) < pending and self.state is State.PREPARING_REBALANCE:
            self._maybe_complete_join()
        return codes

    def _leave(self, one: Leaving) -> ErrorCode:
        if one.member_id == UNKNOWN_MEMBER:
            member = self.members.of_instance(one.instance_id)
            if member is None:
                return ErrorCode.unknown_member_id
        elif self.members.take_back(one.member_id):
            self._around.cancel_timer(SESSION, one.member_id)
            return ErrorCode.none
        else:
            refusal = self.members.refusal(one.member_id, one.instance_id)
            if refusal is not None:
                return refusal
            member = self._member(one.member_id)
        self._remove(member)
        return ErrorCode.none

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
        elif self.members.take_back(member_id) and self.state is State.PREPARING_REBALANCE:
            self._maybe_complete_join()

    def join_over(self) -> None:
        """The time of the join phase is over, or an empty generation is to be logged again."""
        if self.state is State.EMPTY:
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
