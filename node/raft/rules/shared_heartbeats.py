"""Sends, answers and misses the one heartbeat that covers all quiet groups of a pair of nodes.

`peer_heartbeat.py` says what a heartbeat means. This module sends it, and wakes groups when it does not come
or does not match. Both sides say at once which groups leave the set, so that the two stay equal; the digest
finds what was lost on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from math import isfinite
from typing import Any, Final, Protocol

from strandline.node.raft.attention import Attention
from strandline.node.raft.bad_message import BadMessage
from strandline.node.raft.config import RaftConfig
from strandline.node.raft.rank import Rank
from strandline.node.raft.rules.leader_tick import LeaderTick
from strandline.node.raft.rules.peer_heartbeat import PeerHeartbeat
from strandline.node.raft.rules.quiescence import Quiescence
from strandline.node.raft.rules.read_index import ReadIndex

HEARTBEAT = 1  # sent at, number of groups, digest
HEARTBEAT_REPLY = 2  # sent at, whether it matched, whether the node could lead
GROUPS = 3  # [group, term] of every group led quietly
NOT_SHARED = 4  # groups of such a list that are not followed, or that are followed no more
ENDED = 6  # [group, term] of groups that were led quietly; 5 is a call between nodes

_FIELDS = {
    HEARTBEAT: (float, int, int),
    HEARTBEAT_REPLY: (float, bool, bool),
    GROUPS: (list,),
    NOT_SHARED: (list,),
    ENDED: (list,),
}
WOKEN_AT_ONCE: Final = 64
"""Groups whose silent leader is given up in one tick. If it is overloaded and not dead, it is heard again
before most of its groups have gone to an election."""
CHECKED_AT_ONCE: Final = 256


class Frames(Protocol):
    """The way of a frame to a peer."""

    def send(self, peer: int, payload: Any) -> bool: ...


class Group(Protocol):
    """A group, as a heartbeat or its absence concerns it."""

    id: int
    rank: Rank
    reads: ReadIndex
    leader_tick: LeaderTick
    quiescence: Quiescence


class HeartbeatHost(Protocol):
    """The node."""

    config: RaftConfig
    reading: dict[int, Any]
    leaving: bool

    @property
    def attention(self) -> Attention: ...
    @property
    def mesh(self) -> Frames: ...
    @property
    def groups(self) -> Mapping[int, Group]: ...
    def now(self) -> float: ...
    def disk_stalled(self) -> bool: ...


class SharedHeartbeats:
    """The pairs of one node."""

    def __init__(self, host: HeartbeatHost) -> None:
        self._host = host
        self._pairs: dict[int, PeerHeartbeat] = {}

    def pair(self, peer: int) -> PeerHeartbeat:
        pair = self._pairs.get(peer)
        if pair is None:
            pair = self._pairs[peer] = PeerHeartbeat()
        return pair

    def tick(self, now: float) -> None:
        """Send the heartbeats that are due, and wake the groups of a peer that fell silent."""
        config, attention = self._host.config, self._host.attention
        self.tell_changes()
        for peer, pair in self._pairs.items():
            if pair.led.terms:
                if now - pair.sent_at >= config.heartbeat_seconds * 0.9:
                    pair.sent_at = now
                    self._host.mesh.send(peer, [HEARTBEAT, now, *pair.heartbeat()])
                heard = max(pair.acked_sent_at, pair.led_changed_at)
                if attention.since(heard, now) > config.election_min_seconds:
                    self._check_led(pair)
            if pair.followed.terms and attention.since(pair.heard_at, now) > config.election_min_seconds:
                self._wake_silent(peer, pair)

    def tell_changes(self) -> None:
        """Tell each peer which groups left the set it shares with this node."""
        for peer, pair in self._pairs.items():
            if pair.ended:
                ended, pair.ended = pair.ended, {}
                self._host.mesh.send(peer, [ENDED, [[group, term] for group, term in ended.items()]])
            if pair.refused:
                refused, pair.refused = pair.refused, {}
                self._host.mesh.send(peer, [NOT_SHARED, list(refused)])

    def forget_untold(self, peer: int) -> None:
        """The connection to a peer broke."""
        self.pair(peer).forget_untold()

    def on_frame(self, peer: int, payload: list[Any]) -> None:
        """Act on one of the five frames; raises BadMessage for anything else."""
        fields = _FIELDS.get(payload[0]) if type(payload[0]) is int else None
        if fields is None or [type(value) for value in payload[1:]] != list(fields):
            raise BadMessage("frame of unknown kind, or with fields of a wrong type")
        if fields[0] is float and not isfinite(payload[1]):
            raise BadMessage("frame's time is not a number")
        pair, now = self.pair(peer), self._host.now()
        if payload[0] == HEARTBEAT:
            _, sent_at, count, digest = payload
            matched = self.accepts(pair, count, digest)
            if matched:
                pair.heard_at = now
            could_lead = not (self._host.disk_stalled() or self._host.leaving)
            self._host.mesh.send(peer, [HEARTBEAT_REPLY, sent_at, matched, could_lead])
        elif payload[0] == HEARTBEAT_REPLY:
            _, sent_at, matched, could_lead = payload
            if not could_lead:
                pair.cannot_lead_at = now
            if matched:
                pair.acked_sent_at = max(pair.acked_sent_at, sent_at)
                self._confirm_readers()
            elif now - pair.groups_sent_at >= self._host.config.heartbeat_seconds * 0.9:
                pair.groups_sent_at = now
                self._host.mesh.send(
                    peer, [GROUPS, [[group, term] for group, term in pair.led.terms.items()]]
                )
        elif payload[0] == GROUPS:
            self._on_groups(peer, pair, _terms(payload[1]))
        elif payload[0] == ENDED:
            followed = pair.followed.terms
            ended = _terms(payload[1])
            self._wake_followed([group for group, term in ended.items() if followed.get(group) == term])
        elif set(map(type, payload[1])) <= {int}:
            self._wake_led(peer, payload[1])
        else:
            raise BadMessage("list of groups holds something else")

    def accepts(self, pair: PeerHeartbeat, count: int, digest: int) -> bool:
        """Whether a heartbeat counts: only if it names exactly the groups that this node follows."""
        return pair.matches(count, digest)

    def _on_groups(self, peer: int, pair: PeerHeartbeat, led: dict[int, int]) -> None:
        followed = pair.followed.terms
        self._wake_followed([group for group, term in followed.items() if led.get(group) != term])
        unknown = [group for group, term in led.items() if followed.get(group) != term]
        if unknown:
            self._host.mesh.send(peer, [NOT_SHARED, unknown])

    def _confirm_readers(self) -> None:
        for group in list(self._host.reading.values()):
            group.reads.confirm()

    def _check_led(self, pair: PeerHeartbeat) -> None:
        """Those led quietly go on as long as a majority is heard; a part of them is looked at each time."""
        for group_id in list(islice(pair.led.terms, CHECKED_AT_ONCE)):
            # To the end of the line, so that the next look is at others.
            pair.led.terms[group_id] = pair.led.terms.pop(group_id)
            group = self._host.groups.get(group_id)
            if group is not None:
                group.leader_tick.check_quorum()

    def _wake_led(self, peer: int, groups: list[int]) -> None:
        for group_id in groups:
            group = self._host.groups.get(group_id)
            if group is not None:
                group.quiescence.on_refused(peer)

    def _wake_silent(self, peer: int, pair: PeerHeartbeat) -> None:
        """Give a silent leader's groups up, those first that others wait for, a part in each tick."""
        groups = [group for each in pair.followed.terms if (group := self._host.groups.get(each)) is not None]
        if len(groups) > WOKEN_AT_ONCE:
            groups = sorted(groups, key=lambda group: group.rank)[:WOKEN_AT_ONCE]
        self._wake_followed([group.id for group in groups])

    def _wake_followed(self, groups: list[int]) -> None:
        for group_id in groups:
            group = self._host.groups.get(group_id)
            if group is not None:
                group.quiescence.leave()


def _terms(pairs: list[Any]) -> dict[int, int]:
    for each in pairs:
        if type(each) is not list or [type(number) for number in each] != [int, int]:
            raise BadMessage("list of quiet groups holds something else")
    return dict(pairs)
