"""The events that change a consumer group, and the answers to those that are requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from strandline.node.coordinator.groups.consumer_classic import ClassicJoin
from strandline.node.coordinator.groups.consumer_member import MemberHeartbeat
from strandline.node.refusal import Refusal
from strandline.statemachine.groups.consumer_group_commands import Assignment


@dataclass(frozen=True, slots=True)
class TimerExpired:
    """A member's time is over: it sent no heartbeat, or did not revoke its partitions."""

    member_id: str
    timer: str
    """The name of the timer that ended; see consumer_timers."""


MemberEvent = MemberHeartbeat | ClassicJoin | TimerExpired


class Reply(NamedTuple):
    """The answer to a member; no assignment: the one that it has still holds."""

    member_id: str
    epoch: int
    state: int
    assignment: Assignment | None


Answer = Reply | Refusal
