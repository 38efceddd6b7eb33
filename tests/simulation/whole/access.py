"""Access control that changes all the time, and requests that ask every node what is allowed.

Each change flips what a client may do to one resource, so each answer says which states it can come from. No
entry comes again once it may be gone: a request whose answer was lost may take effect at any later time.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.apis import ApiKey
from strandline.statemachine.controller.acl import Operation, PatternType, Permission, ResourceType
from tests.simulation.whole.changing import Changing, State
from tests.simulation.whole.client import Directory
from tests.simulation.whole.cluster import WholeCluster

CHANGE_SECONDS: Final = 0.25
"""On average between two changes."""
ASK_SECONDS: Final = (0.02, 0.12)
"""Between two questions to a node."""


class Entry(NamedTuple):
    """What makes two entries about one resource differ."""

    principal: str
    permission: Permission


_OTHERS = Entry("User:bob", Permission.ALLOW)
"""With it the resource has an entry, and none that allows the clients here."""
_MINE = Entry("User:ANONYMOUS", Permission.ALLOW)
_NOT_MINE = Entry("User:ANONYMOUS", Permission.DENY)
_SCRIPT: Final = (
    (True, _OTHERS), (True, _MINE), (True, _NOT_MINE), (False, _NOT_MINE), (False, _MINE), (False, _OTHERS),
)  # fmt: skip
"""Additions and removals, of which each changes the decision."""

Entries = frozenset[Entry]


def _allows(entries: Entries) -> bool:
    """As Kafka's StandardAuthorizer decides with allow.everyone.if.no.acl.found."""
    return not entries or (_MINE in entries and _NOT_MINE not in entries)


class Access(Changing[Entries]):
    """Changes entries, one at a time, and asks each node one question after the other."""

    def __init__(self, cluster: WholeCluster, directory: Directory, machine: int) -> None:
        super().__init__(cluster, directory, "access", machine)
        for _ in range(2):
            self._fresh()
        self.spawn(self._change_all())
        for node in cluster.plan.nodes:
            self.spawn(self._ask_all(node))

    def _fresh(self) -> None:
        self.states[f"guarded-{len(self.states)}"] = [State(frozenset(), 0.0, 0.0)]

    async def _change_all(self) -> None:
        certain = dict.fromkeys(self.states, True)
        while not self.stopped:
            await asyncio.sleep(self.rng.expovariate(1 / CHANGE_SECONDS))
            resource = self.rng.choice(list(certain))
            step = len(self.states[resource]) - 1
            if step == len(_SCRIPT) or (not certain[resource] and not _SCRIPT[step][0]):
                # An addition that was lost may still come: what it adds is not removed.
                del certain[resource]
                self._fresh()
                certain[next(reversed(self.states))] = True
                continue
            certain[resource] &= await self._change(resource, *_SCRIPT[step])

    async def _change(self, resource: str, adds: bool, entry: Entry) -> bool:
        """Make one change; whether its first request was answered."""
        before = self.states[resource][-1].value

        async def once(first: bool) -> ErrorCode | None:
            return await (self._add(resource, entry) if adds else self._remove(resource, entry, first))

        entries = before | {entry} if adds else before - {entry}
        return await self.make(resource, entries, once, f"changing {entry} of {resource}")

    async def _add(self, resource: str, entry: Entry) -> ErrorCode | None:
        wanted = {
            "resource_type": int(ResourceType.TOPIC), "resource_name": resource,
            "resource_pattern_type": int(PatternType.LITERAL), "principal": entry.principal, "host": "*",
            "operation": int(Operation.DESCRIBE), "permission_type": int(entry.permission),
        }  # fmt: skip
        answer = await self.ask(self.rng.choice(self.wire.nodes), ApiKey.CREATE_ACLS, 3, creations=[wanted])
        return None if answer is None else answer.results[0].error_code

    async def _remove(self, resource: str, entry: Entry, first: bool) -> ErrorCode | None:
        wanted = {
            "resource_type_filter": int(ResourceType.TOPIC), "resource_name_filter": resource,
            "pattern_type_filter": int(PatternType.LITERAL), "principal_filter": entry.principal,
            "host_filter": "*", "operation": int(Operation.DESCRIBE),
            "permission_type": int(entry.permission),
        }  # fmt: skip
        answer = await self.ask(self.rng.choice(self.wire.nodes), ApiKey.DELETE_ACLS, 3, filters=[wanted])
        if answer is None:
            return None
        (result,) = answer.filter_results
        if first and result.error_code is ErrorCode.none and len(result.matching_acls) != 1:
            self.ledger.broken(
                self.check, f"removing {entry} of {resource} found {len(result.matching_acls)}"
            )
        code: ErrorCode = result.error_code
        return code

    async def _ask_all(self, node: int) -> None:
        while not self.stopped:
            await asyncio.sleep(self.rng.uniform(*ASK_SECONDS))
            resource = self.rng.choice(list(self.states)[-3:])
            began = self.world.now
            topic = {"name": resource, "topic_id": None}
            answer = await self.ask(
                node, ApiKey.METADATA, 12, topics=[topic], allow_auto_topic_creation=False
            )
            if answer is None:
                continue
            code = answer.topics[0].error_code
            if code not in (ErrorCode.topic_authorization_failed, ErrorCode.unknown_topic_or_partition):
                self.ledger.broken(self.check, f"node {node} answers {code.name} about {resource}")
                return
            allowed = code is not ErrorCode.topic_authorization_failed
            self.judge(node, resource, began, allowed, lambda entries: _allows(entries) == allowed)  # noqa: B023
