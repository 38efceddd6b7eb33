"""The timers of consumer groups' members: sessions, and their time to revoke partitions or to join again.

The end of a timer is an event of its member as a request is, and takes effect in a turn of the group.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from strandline.node.coordinator.groups.consumer_events import Reply, TimerExpired
from strandline.node.coordinator.groups.context import GroupsContext
from strandline.statemachine.controller.group_config import (
    CONSUMER_HEARTBEAT_INTERVAL_MS,
    CONSUMER_SESSION_TIMEOUT_MS,
)
from strandline.statemachine.controller.settings import Configs
from strandline.statemachine.groups.consumer_group import ConsumerGroup
from strandline.statemachine.groups.consumer_group_commands import STABLE, UNREVOKED, ConsumerMember

SESSION: Final = "consumer session"
REBALANCE: Final = "consumer rebalance"
CLASSIC_JOIN: Final = "consumer join"
"""The timer of a member of the classic protocol that has to join again."""
CLASSIC_SYNC: Final = "consumer sync"
"""The timer of a member that has joined and did not ask for its assignment yet."""
_TIMERS: Final = (SESSION, REBALANCE, CLASSIC_JOIN, CLASSIC_SYNC)
SOON_SECONDS: Final = 0.1
"""Heartbeat interval of a member that waits for partitions which other members still have to revoke."""
STEADY_SECONDS: Final = 0.5
"""Heartbeat interval of any other member, while there are few."""
HEARTBEATS_A_SECOND: Final = 200
"""Heartbeats of all members of a coordinator; with many members, each one's interval is longer."""


class MemberTimers:
    """The timers of the members of one coordinator's consumer groups, kept in the coordinator's own."""

    def __init__(self, coordinator: GroupsContext, expired: Callable[[str, TimerExpired], None]) -> None:
        """`expired` is called with the id of the group."""
        self._coordinator = coordinator
        self._config = coordinator.context.config.groups
        self._expired = expired

    def restart_session(self, group_id: str, member: ConsumerMember) -> None:
        """Give a member that sent a request its whole session timeout again."""
        self.limit(group_id, member.member_id, SESSION, self._session_seconds(group_id, member))

    def follow(self, group_id: str, before: ConsumerMember | None, member: ConsumerMember) -> None:
        """Set the timers for a member's new state.

        A member that has to revoke partitions gets its rebalance timeout for that, once for each time. One
        that speaks the classic protocol gets its time to join instead, from the answer that tells it to.
        """
        if member.classic is None:
            for timer in (CLASSIC_JOIN, CLASSIC_SYNC):
                self.cancel(group_id, member.member_id, timer)
        if member.state != UNREVOKED or member.classic is not None:
            self.cancel(group_id, member.member_id, REBALANCE)
        elif before is None or (before.epoch, before.revoking) != (member.epoch, member.revoking):
            self.limit(group_id, member.member_id, REBALANCE, max(member.rebalance_timeout_ms, 0) / 1000)

    def limit(self, group_id: str, member_id: str, timer: str, seconds: float) -> None:
        """Remove a member after this many seconds, unless the timer is cancelled or set again before."""
        expired = partial(self._expired, group_id, TimerExpired(member_id, timer))
        self._coordinator.timers.set((timer, group_id, member_id), seconds, expired)

    def runs(self, group_id: str, member_id: str, timer: str) -> bool:
        """Whether the timer is set."""
        return self._coordinator.timers.remaining((timer, group_id, member_id)) is not None

    def cancel(self, group_id: str, member_id: str, timer: str) -> None:
        """Forget one timer of a member."""
        self._coordinator.timers.cancel((timer, group_id, member_id))

    def cancel_all(self, group_id: str, member_id: str) -> None:
        """Forget all timers of a member, which is gone."""
        for timer in _TIMERS:
            self.cancel(group_id, member_id, timer)

    def is_over(self, group_id: str, group: ConsumerGroup | None, event: TimerExpired) -> bool:
        """Whether a member's time is still over, now that the event has its turn."""
        member = None if group is None else group.members.get(event.member_id)
        if member is None or self._coordinator.timers.remaining((event.timer, group_id, event.member_id)):
            return False
        if event.timer in (CLASSIC_JOIN, CLASSIC_SYNC):
            return member.classic is not None
        return event.timer == SESSION or member.state == UNREVOKED

    def heartbeat_interval(self, group_id: str, reply: Reply) -> float:
        """Seconds until a member's next heartbeat, which is how it learns of a new target.

        It is shorter than Kafka's where that costs little. A group that sets its interval has that, except
        for members that wait for others.
        """
        configs = self._configs(group_id)
        if CONSUMER_HEARTBEAT_INTERVAL_MS.name in configs:
            longest = CONSUMER_HEARTBEAT_INTERVAL_MS.of(configs) / 1000
            if reply.state == STABLE:
                return longest
        else:
            longest = self._config.consumer_heartbeat_seconds
        least = STEADY_SECONDS if reply.state == STABLE else SOON_SECONDS
        fair = len(self._coordinator.timers) / HEARTBEATS_A_SECOND
        return min(max(least, fair), longest)

    def _session_seconds(self, group_id: str, member: ConsumerMember) -> float:
        if member.classic is not None:
            return member.classic.session_timeout_ms / 1000
        configs = self._configs(group_id)
        if CONSUMER_SESSION_TIMEOUT_MS.name in configs:
            return CONSUMER_SESSION_TIMEOUT_MS.of(configs) / 1000
        return self._config.consumer_session_seconds

    def _configs(self, group_id: str) -> Configs:
        """The group's own configs, as far as this node knows them."""
        return self._coordinator.context.controller.machine.group_configs(group_id)
