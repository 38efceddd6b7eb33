"""Whoever operates compacted topics: changes what becomes of their records, and when deletions go."""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.apis import ApiKey
from strandline.statemachine.controller.topic_config import CLEANUP_POLICY, DELETE_RETENTION_MS, RETENTION_MS
from tests.simulation.whole.client import PASSING, TopicKnown
from tests.simulation.whole.operator import Operator
from tests.simulation.whole.producers import UNKNOWN

TOPIC: Final = 2
SET: Final = 0
_AGAIN: Final = (*PASSING, *UNKNOWN, ErrorCode.not_controller)


class TableOperator(Operator):
    """Sets policies and `delete.retention.ms`; each setting is asked for until it is in force."""

    refused_deletions = (*Operator.refused_deletions, ErrorCode.policy_violation)

    async def _work(self) -> None:
        await super()._work()
        table = self.cluster.plan.table
        assert table is not None
        for topic in self.directory.live(stable=False):
            if table.policies:
                # What is judged in the end must not go on ageing.
                await self._set(topic, RETENTION_MS.name, "-1")
                await self._set(topic, CLEANUP_POLICY.name, self.rng.choice(table.policies))

    async def _do_policy(self) -> None:
        table = self.cluster.plan.table
        assert table is not None
        topic = self.rng.choice(self.directory.live(stable=False))
        await self._set(topic, CLEANUP_POLICY.name, self.rng.choice(table.policies))

    async def _do_retention(self) -> None:
        table = self.cluster.plan.table
        assert table is not None
        topic = self.rng.choice(self.directory.live(stable=False))
        await self._set(topic, DELETE_RETENTION_MS.name, str(self.rng.choice(table.retentions)))

    async def _set(self, topic: TopicKnown, name: str, value: str) -> None:
        change = {"config_operation": SET, "name": name, "value": value}
        asked = {"resource_type": TOPIC, "resource_name": topic.name, "configs": [change]}
        while True:
            answer = await self._ask(
                ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[asked], validate_only=False
            )
            code = answer.responses[0].error_code if answer is not None else ErrorCode.request_timed_out
            if code is ErrorCode.none:
                self.world.record(0, f"{topic.name}: {name}={value}")
                return
            if code not in _AGAIN:
                self.ledger.broken("operator", f"setting {name}={value} of {topic.name}: {code.name}")
                return
            await self.pause()
