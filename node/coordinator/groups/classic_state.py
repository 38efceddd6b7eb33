"""The vocabulary of the classic protocol: states, requests and answers, the rules' environment.

This module has no behaviour. The table of states is Kafka's (ClassicGroupState), so that it can be compared
with Kafka's line by line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from strandline.node.refusal import Cause
from strandline.statemachine.groups.group_commands import (
    AssignGeneration,
    ReplaceStaticMember,
    StartGeneration,
)

Decision = StartGeneration | AssignGeneration | ReplaceStaticMember
"""A command of the rules; it holds once the log has accepted it."""
UNKNOWN_MEMBER: Final = ""
"""Member id in the requests of a client that was not given one yet."""
NO_GENERATION: Final = -1


class ClassicGroupState(Enum):
    """State of a group; the values are Kafka's names, which clients see."""

    EMPTY = "Empty"
    """The group has no members; it may have offsets, and member ids that were given out."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Waits for members to join."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The members of the next generation are known; waits for their leader's assignment."""
    STABLE = "Stable"
    """The assignment of every member is known."""
    DEAD = "Dead"
    """This object is over: the group was deleted, is no classic group any more, or another node leads."""


COMES_FROM: Final[Mapping[ClassicGroupState, tuple[ClassicGroupState, ...]]] = MappingProxyType(
    {
        ClassicGroupState.EMPTY: (ClassicGroupState.PREPARING_REBALANCE,),
        ClassicGroupState.PREPARING_REBALANCE: (
            ClassicGroupState.STABLE,
            ClassicGroupState.COMPLETING_REBALANCE,
            ClassicGroupState.EMPTY,
        ),
        ClassicGroupState.COMPLETING_REBALANCE: (ClassicGroupState.PREPARING_REBALANCE,),
        ClassicGroupState.STABLE: (ClassicGroupState.COMPLETING_REBALANCE,),
        ClassicGroupState.DEAD: tuple(ClassicGroupState),
    }
)
"""For each state the states that may come before it: Kafka's validPreviousStates."""


class JoinRequest(NamedTuple):
    """A JoinGroup. Timeouts are seconds."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session: float
    rebalance: float
    protocol_type: str
    protocols: Sequence[tuple[str, bytes]]
    """The client's protocols in order of preference; the group's leader assigns by their metadata."""
    takes_member_id: bool = True
    """Whether it comes again with the member id it is given (KIP-394: version 4)."""
    takes_skip: bool = True
    """Whether the client supports leading without assigning (KIP-814: version 9)."""


class JoinResponse(NamedTuple):
    """The answer to a JoinGroup; with an error, only the error and the member id count."""

    error: Cause | None
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: Sequence[tuple[str, str | None, bytes]] = ()
    """Member id, instance id, metadata of every member: for the group's leader."""


class SyncRequest(NamedTuple):
    """A SyncGroup; the assignments are there when it is the leader's."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    """None: the request has none (before version 5)."""
    protocol: str | None
    assignments: Mapping[str, bytes]


class SyncResponse(NamedTuple):
    """The answer to a SyncGroup."""

    error: Cause | None
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class Leaving(NamedTuple):
    """One member of a LeaveGroup; without a member id, its instance id names it (KIP-345)."""

    member_id: str
    instance_id: str | None


class GroupLimits(NamedTuple):
    """Limits of one group. Times are seconds."""

    initial_delay: float
    """Time that a group that was empty waits for more members before its first generation."""
    min_session: float
    max_session: float
    max_members: int
    """Member ids that were given out and not used yet included."""
    max_bytes: int
    """Bytes of its members together: subscriptions and ids. Assignments are a log entry of their own."""


JOIN: Final = "join"
"""The timer of a group's join phase."""
SYNC: Final = "sync"
"""The timer of members that have joined and did not ask for their assignment yet."""
SESSION: Final = "session"
"""The timer of a member, or of a member id that was given out."""


class Environment(Protocol):
    """Services of the runtime for the rules of one group. None of them calls back into the group at once."""

    def answer(self, ticket: int, result: JoinResponse | SyncResponse) -> None:
        """Answer a waiting request; without effect if the client is gone."""

    def set_timer(self, what: str, member_id: str, seconds: float) -> None:
        """Call the group's method of this timer in this many seconds from now; one for each key."""

    def cancel_timer(self, what: str, member_id: str) -> None: ...

    def decide(self, command: Decision) -> None:
        """Put a command into the log, in the order of these calls; the group's `decided` gets the result."""

    def new_member_id(self, prefix: str) -> str: ...

    def logged_generation(self) -> tuple[int, bool]:
        """The group's generation as far as the log is applied, 0 without one, and whether it has members."""

    def has_room(self, size: int) -> bool:
        """Whether all groups here together may grow by this many bytes."""
