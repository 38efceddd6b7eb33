"""Members of one group, of the classic protocol and of KIP-848, as far as a worker needs to know them.

A member says itself when it speaks: one that is busy for longer than its session is a zombie when it comes
back, and finds that out like any other client.
"""

from __future__ import annotations

import struct
import uuid
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.apis import ApiKey
from strandline.statemachine.groups.consumer_protocol import read_assignment, write_assignment
from tests.simulation.whole.client import TopicKnown
from tests.simulation.whole.transactions.coordinated import BUSY, GROUP, MOVED, Coordinated
from tests.simulation.whole.wire import Lost

REBALANCE_SECONDS: Final = 2.0
_OVER: Final = (
    ErrorCode.illegal_generation,
    ErrorCode.unknown_member_id,
    ErrorCode.rebalance_in_progress,
    ErrorCode.fenced_member_epoch,
    ErrorCode.stale_member_epoch,
    ErrorCode.fenced_instance_id,
)
"""The generation or the member is over: it has to join again."""
_STRANGERS: Final = (
    ErrorCode.unknown_member_id,
    ErrorCode.fenced_member_epoch,
    ErrorCode.fenced_instance_id,
)
_NOBODY: Final = -1
_LEFT: Final = -1
_LEFT_FOR_A_WHILE: Final = -2
"""Member epochs of KIP-848: of one that leaves, of a static one that will be back."""


class Member(ABC):
    """`generation` and `member_id` go with what it commits; `partitions` are its own until it hears else."""

    def __init__(self, client: Coordinated, group: str, topic: TopicKnown, instance: str | None) -> None:
        self.client = client
        self.group = group
        self.topic = topic
        self.instance_id = instance
        self.member_id = ""
        self.generation = _NOBODY
        self.partitions: list[int] = []

    @abstractmethod
    async def beat(self) -> bool:
        """Say that it lives, or join; false when its partitions have changed, or may have."""

    @abstractmethod
    async def leave(self) -> None:
        """Tell the group, if it can be told."""

    def _fetch_fields(self) -> dict[str, Any]:
        return {}

    async def offsets(self) -> dict[int, int] | None:
        """Where its partitions are to be read from; None: not to be had now, or the member is over."""
        topics = [{"name": self.topic.name, "partition_indexes": self.partitions}]
        answer = await self._ask(
            ApiKey.OFFSET_FETCH, 9, require_stable=True,
            groups=[{"group_id": self.group, "topics": topics, **self._fetch_fields()}],
        )  # fmt: skip
        if answer is None:
            return None
        (told,) = answer.groups
        if told.error_code is not ErrorCode.none:
            self._judge("OffsetFetch", told.error_code)
            return None
        found = {}
        for one in (one for topic in told.topics for one in topic.partitions):
            if one.error_code is not ErrorCode.none:
                self.client.journal.counts[f"OffsetFetch {one.error_code.name}"] += 1
                if one.error_code is not ErrorCode.unstable_offset_commit:
                    self._broken("OffsetFetch", one.error_code)
                return None
            found[one.partition_index] = max(one.committed_offset, 0)
        return found

    async def _ask(self, api: int, version: int, seconds: float = 0.0, **fields: Any) -> Any:
        """The answer of the group's coordinator; None when there was none."""
        try:
            return await self.client.coordinated(
                GROUP, self.group, api, version, self.client.load.answer_seconds + seconds, **fields
            )
        except Lost:
            return None

    def _judge(self, what: str, code: ErrorCode) -> bool:
        """Whether all is well; takes from a member that is over what it had."""
        if code is ErrorCode.none:
            return True
        self.client.journal.counts[f"{what} {code.name}"] += 1
        if code in MOVED:
            self.client.moved(GROUP, self.group)
        elif code in _OVER:
            self.generation = _NOBODY
            if code in _STRANGERS:
                self._forget()
        elif code not in (*BUSY, ErrorCode.unreleased_instance_id):
            self._broken(what, code)
        return False

    def _forget(self) -> None:
        self.member_id = ""

    def _broken(self, what: str, code: ErrorCode) -> None:
        self.client.ledger.broken("answers", f"{self.client.name}: {what} was answered {code.name}")


class ClassicMember(Member):
    """JoinGroup, SyncGroup, Heartbeat; the leader deals the partitions out in turn."""

    async def beat(self) -> bool:
        if self.generation == _NOBODY:
            await self._join()
            return False
        answer = await self._ask(
            ApiKey.HEARTBEAT, 4, group_id=self.group, generation_id=self.generation,
            member_id=self.member_id, group_instance_id=self.instance_id,
        )  # fmt: skip
        # Without an answer nothing is known: it goes on, and whoever judges its commits knows better.
        return answer is None or self._judge("Heartbeat", answer.error_code)

    async def _join(self) -> None:
        self.partitions = []
        answer = await self._ask(
            ApiKey.JOIN_GROUP, 9, REBALANCE_SECONDS, group_id=self.group, member_id=self.member_id,
            group_instance_id=self.instance_id,
            session_timeout=timedelta(seconds=self.client.load.session),
            rebalance_timeout=timedelta(seconds=REBALANCE_SECONDS),
            protocol_type="consumer",
            protocols=[{"name": "in turn", "metadata": _subscription(self.topic.name)}],
        )  # fmt: skip
        if answer is None:
            return
        if answer.error_code is ErrorCode.member_id_required:
            self.member_id = answer.member_id
            return
        if not self._judge("JoinGroup", answer.error_code):
            return
        self.member_id = answer.member_id
        assignments: list[dict[str, Any]] = []
        if answer.leader == answer.member_id and not answer.skip_assignment:
            assignments = self._assign(sorted(one.member_id for one in answer.members))
        synced = await self._ask(
            ApiKey.SYNC_GROUP, 5, REBALANCE_SECONDS, group_id=self.group, generation_id=answer.generation_id,
            member_id=self.member_id, group_instance_id=self.instance_id, protocol_type="consumer",
            protocol_name="in turn", assignments=assignments,
        )  # fmt: skip
        if synced is not None and self._judge("SyncGroup", synced.error_code):
            self.generation = answer.generation_id
            given = read_assignment(synced.assignment)
            assert given is not None
            self.partitions = sorted(number for _, numbers in given.partitions for number in numbers)
            self.client.journal.counts["generations joined"] += 1
            if not answer.leader:
                self.client.journal.counts["generations joined in consumer groups"] += 1

    def _assign(self, members: list[str]) -> list[dict[str, Any]]:
        numbers = range(self.topic.partitions)
        metadata = _subscription(self.topic.name)
        dealt = [numbers[at :: len(members)] for at in range(len(members))]
        return [
            {
                "member_id": member,
                "assignment": write_assignment({self.topic.name: share} if share else {}, metadata),
            }
            for member, share in zip(members, dealt, strict=True)
        ]

    async def leave(self) -> None:
        if self.member_id:
            leaves = {"member_id": self.member_id, "group_instance_id": self.instance_id}
            await self._ask(ApiKey.LEAVE_GROUP, 4, group_id=self.group, members=[leaves])
        self.generation, self.partitions = _NOBODY, []
        self._forget()


class ConsumerMember(Member):
    """ConsumerGroupHeartbeat, with the server's assignor."""

    _owned: tuple[int, ...] | None = None

    async def beat(self) -> bool:
        joining = self.generation == _NOBODY
        if joining:
            self.member_id = self.member_id or str(uuid.UUID(int=self.client.rng.getrandbits(128), version=4))
            self.partitions, self._owned = [], None
        owned = {"topic_id": uuid.UUID(bytes=self.topic.topic_id), "partitions": self.partitions}
        answer = await self._ask(
            ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, group_id=self.group, member_id=self.member_id,
            instance_id=self.instance_id, member_epoch=0 if joining else self.generation,
            rebalance_timeout=timedelta(seconds=REBALANCE_SECONDS),
            subscribed_topic_names=[self.topic.name],
            topic_partitions=[] if not self.partitions else [owned],
        )  # fmt: skip
        if answer is None:
            return not joining
        if answer.error_code is ErrorCode.group_id_not_found and not joining:
            # It was out, and the others speak the classic protocol: the group is one of that again.
            self.client.journal.counts["ConsumerGroupHeartbeat group_id_not_found"] += 1
            self.generation = _NOBODY
            self._forget()
            return False
        if not self._judge("ConsumerGroupHeartbeat", answer.error_code):
            return self.generation != _NOBODY
        if answer.member_epoch != self.generation:
            self.client.journal.counts["generations joined"] += 1
        self.generation = answer.member_epoch
        if answer.assignment is None:
            return True
        told = sorted(number for one in answer.assignment.topic_partitions for number in one.partitions)
        if told == self.partitions:
            return True
        self.partitions = told
        return False

    def _fetch_fields(self) -> dict[str, Any]:
        return {"member_id": self.member_id, "member_epoch": self.generation}

    async def leave(self) -> None:
        if self.generation != _NOBODY:
            await self._ask(
                ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, group_id=self.group, member_id=self.member_id,
                instance_id=self.instance_id, member_epoch=self._leaving(),
                rebalance_timeout=timedelta(milliseconds=-1), subscribed_topic_names=None,
                topic_partitions=None,
            )  # fmt: skip
        self.generation, self.partitions = _NOBODY, []
        self._forget()

    def _leaving(self) -> int:
        stays = self.instance_id is not None and self.client.rng.random() < 0.5
        return _LEFT_FOR_A_WHILE if stays else _LEFT


def _subscription(topic: str) -> bytes:
    """A consumer's subscription (ConsumerProtocolSubscription, version 0)."""
    name = topic.encode()
    return struct.pack(f">hih{len(name)}si", 0, 1, len(name), name, -1)
