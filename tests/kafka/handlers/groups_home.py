"""A fake node that leads the coordinator of every group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from uuid import UUID

from kio.schema.errors import ErrorCode

from strandline.node.coordinator.groups.coordinator import GroupCoordinator
from strandline.node.coordinator.table import Coordinators
from strandline.node.kafka.wire.apis import ApiKey
from strandline.node.refusal import Refusal
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.coordinator_machine import CoordinatorCommand, encode
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.internal_topics import GROUPS_TOPIC
from tests.kafka.handlers.fake_node import FakeNode
from tests.runtime.jumping_loop import run

MINUTE, SESSION = timedelta(minutes=1), timedelta(seconds=10)


class Replica:
    """A `CoordinatorReplica` that leads, whose commands are applied at once."""

    number, term, leads = 3, 1, True

    def __init__(self) -> None:
        self.machine = GroupsMachine(lambda index, state: None)
        self.machine.begin_term(1, 1, 1)
        self.index = 1
        self.down: Refusal | None = None

    async def execute(self, command: CoordinatorCommand) -> Any:
        await asyncio.sleep(0)
        if self.down is not None:
            return self.down
        self.index += 1
        return self.machine.apply(self.index, 1, encode(1, 1000, command))

    async def confirm(self) -> bool:
        return True

    def follow(self, started: Callable[[int], None], stopped: Callable[[str], None]) -> None:
        self.started, self.stopped = started, stopped


class Table(NamedTuple):
    """What requests ask of `Coordinators`."""

    groups_for: Callable[[str], Any]
    led_groups: Callable[[], list[GroupCoordinator]]
    replicas: list[Any]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.replicas)

    def loading(self, topic: str) -> bool:
        return Coordinators.loading(cast(Any, self), topic)


class Home(FakeNode):
    """A node that leads the coordinator of every group, or says `code`."""

    def __init__(self) -> None:
        super().__init__()
        self.replica = Replica()
        self.coordinator = GroupCoordinator(cast(Any, self.replica), self.coordinator_context)
        self.replica.started(1)
        self.code: Any = None
        self.loads = SimpleNamespace(loading=False, place=SimpleNamespace(topic=GROUPS_TOPIC))
        """A replica of another coordinator."""
        self.coordinators = cast(Any, Table(self._find, self._led, [self.loads]))

    def _find(self, group: str) -> Any:
        return self.code or self.coordinator

    def _led(self) -> list[GroupCoordinator]:
        return [] if self.code else [self.coordinator]

    async def join(self, version: int | None = None, **more: Any) -> Any:
        asked = {
            "group_id": "g",
            "member_id": "",
            "session_timeout": SESSION,
            "rebalance_timeout": MINUTE,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"topics"}],
        }
        return await self.ask(ApiKey.JOIN_GROUP, version, **{**asked, **more})

    async def member(self, version: int | None = None, **more: Any) -> Any:
        """Join, with the member id that is given where one is."""
        joined = await self.join(version, **more)
        if joined.error_code is ErrorCode.member_id_required:
            joined = await self.join(version, member_id=joined.member_id, **more)
        assert joined.error_code is ErrorCode.none
        return joined

    async def stable(self) -> Any:
        """A group of one member."""
        joined = await self.member()
        synced = await self.sync(joined, {joined.member_id: b"all"})
        assert synced.assignment == b"all"
        return joined

    async def sync(self, joined: Any, assignments: dict[str, bytes], version: int | None = None) -> Any:
        return await self.ask(
            ApiKey.SYNC_GROUP,
            version,
            group_id="g",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[{"member_id": key, "assignment": value} for key, value in assignments.items()],
        )

    async def beat(self, joined: Any, version: int | None = None) -> ErrorCode:
        answer = await self.ask(
            ApiKey.HEARTBEAT,
            version,
            group_id="g",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
        )
        return cast(ErrorCode, answer.error_code)

    def close(self) -> None:
        self.replica.stopped("the test is over")


def at_home(test: Callable[[Home], Any]) -> None:
    async def live() -> None:
        home = Home()
        try:
            await test(home)
        finally:
            home.close()
            await asyncio.sleep(0)

    run(live)


JOIN = {"rebalance_timeout": MINUTE, "subscribed_topic_names": ["events"], "topic_partitions": []}


def topic(home: Home, name: str = "events", partitions: int = 2) -> Topic:
    made = home.cluster.create(name, partitions)
    home.controller.hear()
    return made


async def beat(home: Home, version: int | None = None, epoch: int = 0, **more: Any) -> Any:
    asked = {"group_id": "g", "member_id": "m", "member_epoch": epoch, "topic_partitions": None}
    if epoch == 0:
        asked |= JOIN
    return await home.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, **{**asked, **more})


async def described(home: Home, group: str = "g", version: int | None = None) -> Any:
    answer = await home.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, version, group_ids=[group])
    (only,) = answer.groups
    return only


def parts(assignment: Any) -> dict[UUID, tuple[int, ...]]:
    return {one.topic_id: one.partitions for one in assignment.topic_partitions}
