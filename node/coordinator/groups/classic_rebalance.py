"""Leads a classic group from one generation to the next: joining, the decisions in the log, the answers.

It is Kafka's state machine (ClassicGroup, and the classic part of GroupMetadataManager) without threads,
timers or log: its effects go through `Environment`. One thing differs. Kafka keeps a generation that is not
assigned yet in memory only. Here the log decides the generation before any member is told of it, so it fences
commits from then on, and members need not join again when a coordinator is lost between join and sync. While
a decision is in progress the group goes on: a member that joins meanwhile is part of the generation after it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from strandline.node.coordinator.groups.classic_members import LiveMember
from strandline.node.coordinator.groups.classic_state import (
    JOIN,
    SYNC,
    ClassicGroupState,
    Decision,
    Environment,
    GroupLimits,
    SyncResponse,
)
from strandline.node.coordinator.groups.classic_waiting import Waiting
from strandline.node.refusal import Cause, Refusal
from strandline.statemachine.groups.consumer_protocol import CONSUMERS
from strandline.statemachine.groups.group_commands import (
    AssignGeneration,
    ReplaceStaticMember,
    StartGeneration,
)
from strandline.statemachine.kafka_errors import KafkaError, Refused

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
"""Pause before an empty generation that the log did not take is proposed again."""
MAX_REFUSALS: Final = 3
"""Times that a generation may lose a race against the group's deletion before its members are refused."""

_SYNC_FAILURES: Final[Mapping[Cause, Cause]] = {
    # As Kafka's appendGroupMetadataErrorToResponseError: no retry makes an assignment smaller.
    KafkaError.MESSAGE_TOO_LARGE: KafkaError.UNKNOWN_SERVER_ERROR,
    # Java's consumer and aiokafka give up on this answer to a SyncGroup; and the group does begin again.
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS: KafkaError.REBALANCE_IN_PROGRESS,
}
"""Errors for members whose assignment the log refused, where they differ from the log's own."""


class Rebalancing(Waiting):
    """The group's own steps, taken after `LiveGroup` has recorded a request or the end of a timer."""

    def __init__(self, group_id: str, limits: GroupLimits, environment: Environment) -> None:
        super().__init__(group_id, environment)
        self._limits = limits
        self._initial = False
        """Whether this join phase is one of a group that was empty."""
        self._newcomers = False
        """Whether a member joined since the delay of an initial join phase last began."""
        self._initial_left = 0.0
        self._overdue = False
        """Whether the join phase's time ended while a decision was in progress."""
        self._deciding = 0
        """Number of decisions in progress."""
        self._starting = False
        """Whether a StartGeneration is among the decisions; members hear of the generation after it."""
        self._unlogged = False
        """The group is empty, and the log did not take that yet."""
        self._refusals = 0

    # The join phase.

    def _prepare(self, reason: str) -> None:
        """Begin a join phase."""
        log.info("group %r: generation %d is over: %s", self.group_id, self.generation, reason)
        initial = self.state is ClassicGroupState.EMPTY
        self._enter(ClassicGroupState.PREPARING_REBALANCE)
        self._environment.cancel_timer(SYNC, "")
        for member in self.members:
            if member.sync is not None:
                self._end_sync(member, SyncResponse(KafkaError.REBALANCE_IN_PROGRESS))
                self._alive(member)
            self.members.set_joined(member, member.join is not None)
        self._initial, self._newcomers, self._overdue = initial, False, False
        if initial:
            delay = self._limits.initial_delay
            self._initial_left = max(self._longest_rebalance() - delay, 0.0)
            self._environment.set_timer(JOIN, "", delay)
        elif self.members.all_joined:
            self._complete_join()
        else:
            self._environment.set_timer(JOIN, "", self._longest_rebalance())

    def _go_on_joining(self, reason: str) -> None:
        """A member joined: complete the join phase if it was the last one, or begin a join phase."""
        if self.state is ClassicGroupState.PREPARING_REBALANCE:
            self._maybe_complete_join()
        else:
            self._prepare(reason)

    def _go_on_without(self, reason: str) -> None:
        """Members left: go on without them in the join phase, or begin one that spreads their share."""
        if self.state is ClassicGroupState.PREPARING_REBALANCE:
            self._maybe_complete_join()
        elif self.state is not ClassicGroupState.EMPTY:
            self._prepare(reason)

    def _join_time_over(self) -> None:
        if self._initial and self._newcomers and self._initial_left > 0:
            # As Kafka's: a group that still grows is given more time, up to the rebalance timeout.
            self._newcomers = False
            delay = min(self._limits.initial_delay, self._initial_left)
            self._initial_left -= delay
            self._environment.set_timer(JOIN, "", delay)
        else:
            self._complete_join()

    def _maybe_complete_join(self) -> None:
        if not self._initial and self.members.all_joined:
            self._complete_join()

    def _complete_join(self) -> None:
        """End the join phase: the members that have joined are the next generation."""
        if self._deciding:
            # The next generation's number and members follow from what is in the log by then.
            self._overdue = True
            return
        self._overdue = False
        self._environment.cancel_timer(JOIN, "")
        for member in [member for member in self.members if not member.joined and member.instance_id is None]:
            self._remove(member)
        if not len(self.members):
            self._enter(ClassicGroupState.EMPTY)
            self._empty_generation()
            return
        leader = self.members.get(self.leader)
        if leader is None or not leader.joined:
            leader = self._electable()
        if leader is None:
            # Static members only, and none came: they keep their places until they are silent for too long.
            self._initial = False
            self._environment.set_timer(JOIN, "", self._longest_rebalance())
            return
        self.leader = leader.member_id
        self._enter(ClassicGroupState.COMPLETING_REBALANCE)
        self._start_generation()

    def _electable(self) -> LiveMember | None:
        """The first member to join whose request still waits; if none waits, the first to join."""
        joined = [member for member in self.members if member.joined]
        return next((member for member in joined if member.join is not None), joined[0] if joined else None)

    # Decisions.

    def _start_generation(self) -> None:
        present, _ = self._environment.logged_generation()
        self.generation = present + 1
        self.protocol = self.members.selected()
        self._starting = True
        for member in self.members:
            member.in_generation = True
            self.members.set_synced(member, False)
            self.members.assign(member, b"")
        members = [member.logged() for member in self.members]
        self._decide(
            StartGeneration(
                self.group_id, self.generation, self.protocol_type, self.protocol, self.leader, members
            )
        )

    def _empty_generation(self) -> None:
        self.leader = self.protocol = ""
        self._unlogged = False
        present, has_members = self._environment.logged_generation()
        if has_members:
            self.generation = present + 1
            self._decide(StartGeneration(self.group_id, self.generation, self.protocol_type, "", "", []))

    def _assign(self, assignments: Mapping[str, bytes]) -> None:
        every = {member.member_id: assignments.get(member.member_id, b"") for member in self.members}
        self._decide(AssignGeneration(self.group_id, self.generation, every))

    def _decide(self, command: Decision) -> None:
        self._deciding += 1
        self._environment.decide(command)

    def decided(self, command: Decision, result: Any) -> None:
        """Handle the result of a command that this group gave to `Environment.decide`."""
        if self.state is ClassicGroupState.DEAD:
            return
        self._deciding -= 1
        if isinstance(command, StartGeneration):
            self._started(result)
        elif isinstance(command, AssignGeneration):
            self._assigned(command, result)
        else:
            self._replaced(command, result)
        if self.state is ClassicGroupState.PREPARING_REBALANCE and not self._deciding:
            if self._overdue:
                self._complete_join()
            else:
                self._maybe_complete_join()

    def _started(self, result: Any) -> None:
        self._starting = False
        failed = _failure(result)
        if failed is None:
            self._refusals = 0
            if self.state is ClassicGroupState.COMPLETING_REBALANCE:
                for member in self.members:
                    self._tell_generation(member)
                    self._alive(member)
                self._environment.set_timer(SYNC, "", self._longest_rebalance())
        elif isinstance(result, Refused):
            # The group was deleted, or expired, between the look at its generation and the apply.
            self._refusals += 1
            outrun = failed is KafkaError.ILLEGAL_GENERATION
            if not outrun or self._refusals > MAX_REFUSALS:
                if outrun:  # a client looks for the coordinator, and joins again
                    failed = KafkaError.COORDINATOR_NOT_AVAILABLE
                elif self.protocol_type == CONSUMERS:  # they may join the consumer group that it is now
                    failed = KafkaError.REBALANCE_IN_PROGRESS
                self.end(failed)
            elif self.state is ClassicGroupState.COMPLETING_REBALANCE:
                self._start_generation()
            elif self.state is ClassicGroupState.EMPTY:
                self._empty_generation()
        elif self.state is ClassicGroupState.COMPLETING_REBALANCE:
            # Not in the log, so there is no such generation: the members that joined have to join again.
            for member in self.members:
                self._end_join(member, failed)
                self._alive(member)
            self._prepare("it could not be logged")
        elif self.state is ClassicGroupState.EMPTY:
            self._unlogged = True
            self._environment.set_timer(JOIN, "", RETRY_SECONDS)

    def _assigned(self, command: AssignGeneration, result: Any) -> None:
        if self.state is not ClassicGroupState.COMPLETING_REBALANCE or command.generation != self.generation:
            return
        failed = _failure(result)
        if failed is not None:
            answer = SyncResponse(_SYNC_FAILURES.get(failed, failed))
            for member in self.members:
                self._end_sync(member, answer)
                self._alive(member)
            self._prepare("its assignment could not be logged")
            return
        self._enter(ClassicGroupState.STABLE)
        for member in self.members:
            self.members.assign(member, command.assignments[member.member_id])
            self._end_sync(member, self._assignment(member))
            self._alive(member)

    def _replaced(self, command: ReplaceStaticMember, result: Any) -> None:
        member = self.members.get(command.member.member_id)
        if self.state is not ClassicGroupState.STABLE or member is None or member.join is None:
            return
        failed = _failure(result)
        if failed is None:
            leads = member.member_id == self.leader
            # Before KIP-814 a client that learns that it leads would send an assignment, and the group would
            # ignore it. So its answer names the former leader.
            leader = self.leader if member.skips or not leads else command.old
            self._tell_generation(member, leader=leader, skip=member.skips and leads)
            self._alive(member)
        else:
            decided = isinstance(result, Refused)  # by the log: the group went on to another generation
            self._end_join(member, KafkaError.REBALANCE_IN_PROGRESS if decided else failed)
            self._alive(member)
            self._prepare("a static member's return could not be logged")

    # Endings.

    def end(self, error: Cause) -> None:
        """End this object: every waiting request is answered with `error`. The caller cancels its timers."""
        log.info("group %r: this node no longer coordinates it: %s", self.group_id, error.name)
        self._enter(ClassicGroupState.DEAD)
        for member in self.members:
            self._end_join(member, error)
            self._end_sync(member, SyncResponse(error))


def _failure(result: Any) -> Cause | None:
    if isinstance(result, Refusal):
        return result.reason
    return result.error if isinstance(result, Refused) else None
