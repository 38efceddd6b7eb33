"""Sending, answering and missing the one heartbeat that stands for all quiet groups of a pair of nodes.

`pairs.py` says what a heartbeat means; this is who sends it when, and who is woken when it does not come or
does not match.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from node.raft.messages import BadMessage
from node.raft.pairs import Pair

if TYPE_CHECKING:
    from node.raft.host import RaftHost

HEARTBEAT = 1  # sent at, number of groups, digest
HEARTBEAT_REPLY = 2  # sent at, whether it matched
GROUPS = 3  # [group, term] of every group led quietly
NOT_SHARED = 4  # groups of such a list that are not followed

_FIELDS = {HEARTBEAT: (float, int, int), HEARTBEAT_REPLY: (float, bool), GROUPS: (list,), NOT_SHARED: (list,)}


class QuietHeartbeats:
    """The pairs of one node."""

    def __init__(self, host: RaftHost) -> None:
        self._host = host
        self._pairs: dict[int, Pair] = {}

    def pair(self, peer: int) -> Pair:
        pair = self._pairs.get(peer)
        if pair is None:
            pair = self._pairs[peer] = Pair()
        return pair

    def tick(self, now: float) -> None:
        """Send the heartbeats that are due, and wake the groups of a peer that fell silent."""
        config = self._host.config
        for peer, pair in self._pairs.items():
            if pair.led.terms:
                if now - pair.sent_at >= config.heartbeat_seconds * 0.9:
                    pair.sent_at = now
                    self._host.mesh.send(peer, [HEARTBEAT, now, *pair.heartbeat()])
                heard = max(pair.acked_sent_at, pair.led_changed_at)
                if now - heard > config.election_min_seconds:
                    self._wake_led(peer, list(pair.led.terms))
            if pair.followed.terms and now - pair.heard_at > config.election_min_seconds:
                self._wake_followed(list(pair.followed.terms))

    def on_frame(self, peer: int, payload: list[Any]) -> None:
        """Act on one of the four frames; raises BadMessage for anything else."""
        fields = _FIELDS.get(payload[0]) if type(payload[0]) is int else None
        if fields is None or [type(value) for value in payload[1:]] != list(fields):
            raise BadMessage("frame of unknown kind, or with fields of a wrong type")
        if fields[0] is float and not isfinite(payload[1]):
            raise BadMessage("frame's time is no number")
        pair, now = self.pair(peer), self._host.now()
        if payload[0] == HEARTBEAT:
            _, sent_at, count, digest = payload
            matched = self.accepts(pair, count, digest)
            if matched:
                pair.heard_at = now
            self._host.mesh.send(peer, [HEARTBEAT_REPLY, sent_at, matched])
        elif payload[0] == HEARTBEAT_REPLY:
            _, sent_at, matched = payload
            if matched:
                pair.acked_sent_at = max(pair.acked_sent_at, sent_at)
                self._confirm_readers(pair)
            else:
                self._host.mesh.send(
                    peer, [GROUPS, [[group, term] for group, term in pair.led.terms.items()]]
                )
        elif payload[0] == GROUPS:
            self._on_groups(peer, pair, payload[1])
        elif set(map(type, payload[1])) <= {int}:
            self._wake_led(peer, payload[1])
        else:
            raise BadMessage("list of groups holds something else")

    def accepts(self, pair: Pair, count: int, digest: int) -> bool:
        """A heartbeat counts only if its sender leads exactly what this node follows from it."""
        return pair.matches(count, digest)

    def _on_groups(self, peer: int, pair: Pair, groups: list[Any]) -> None:
        for each in groups:
            if type(each) is not list or [type(number) for number in each] != [int, int]:
                raise BadMessage("list of quiet groups holds something else")
        led: dict[int, int] = dict(groups)
        followed = pair.followed.terms
        self._wake_followed([group for group, term in followed.items() if led.get(group) != term])
        unknown = [group for group, term in led.items() if followed.get(group) != term]
        if unknown:
            self._host.mesh.send(peer, [NOT_SHARED, unknown])

    def _confirm_readers(self, pair: Pair) -> None:
        for group_id in pair.led.terms:
            group = self._host.groups.get(group_id)
            if group is not None and group.readers:
                group.on_confirmed()

    def _wake_led(self, peer: int, groups: list[int]) -> None:
        for group_id in groups:
            group = self._host.groups.get(group_id)
            if group is not None:
                group.wake_leader(peer)

    def _wake_followed(self, groups: list[int]) -> None:
        for group_id in groups:
            group = self._host.groups.get(group_id)
            if group is not None:
                group.leave_quiet()
