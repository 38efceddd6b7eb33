"""Access control that changes all the time, and requests that ask every node what is allowed.

Each change flips what a client may do to one resource, so each answer says which states it can come from. No
entry comes again once it may be gone: a request whose answer was lost may take effect at any later time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.apis import ApiKey
from strandline.statemachine.controller.acl import Operation, PatternType, Permission, ResourceType
from tests.simulation.whole.client import Client, Directory
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.wire import Lost

CHANGE_SECONDS: Final = 0.25
"""On average between two changes."""
ASK_SECONDS: Final = (0.02, 0.12)
"""Between two questions to a node."""
IN_FORCE_SECONDS: Final = 1.0
"""By then a change that was acknowledged counts on every node, without faults."""
_ANSWER_SECONDS: Final = 3.0
_SERVER_SECONDS: Final = timedelta(seconds=2)
_PASSING: Final = (ErrorCode.request_timed_out, ErrorCode.not_controller, ErrorCode.coordinator_not_available)
_CHECK: Final = "access"


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


@dataclass(slots=True)
class State:
    """The entries about a resource from a change on; `acked` when its answer came, None until then."""

    entries: frozenset[Entry]
    begun: float
    acked: float | None = None

    @property
    def allows(self) -> bool:
        """As Kafka's StandardAuthorizer decides with allow.everyone.if.no.acl.found."""
        return not self.entries or (_MINE in self.entries and _NOT_MINE not in self.entries)


class Access(Client):
    """Changes entries, one at a time, and asks each node one question after the other."""

    def __init__(self, cluster: WholeCluster, directory: Directory, machine: int) -> None:
        super().__init__(cluster, directory, "access", machine)
        self.changes = self.answers = self.refusals = 0
        self._states: dict[str, list[State]] = {}
        """By resource, in the order of the changes."""
        self._least: dict[tuple[int, str], int] = {}
        """By node and resource, the first state that its answers so far can come from."""
        self._calm: float | None = None
        for _ in range(2):
            self._fresh()
        self.spawn(self._change_all())
        for node in cluster.plan.nodes:
            self.spawn(self._ask_all(node))

    def calm(self) -> None:
        """Nothing goes wrong from now on: changes have to be in force in time."""
        self._calm = self.world.now

    def _fresh(self) -> None:
        self._states[f"guarded-{len(self._states)}"] = [State(frozenset(), 0.0, 0.0)]

    async def _change_all(self) -> None:
        certain = dict.fromkeys(self._states, True)
        while not self.stopped:
            await asyncio.sleep(self.rng.expovariate(1 / CHANGE_SECONDS))
            resource = self.rng.choice(list(certain))
            step = len(self._states[resource]) - 1
            if step == len(_SCRIPT) or (not certain[resource] and not _SCRIPT[step][0]):
                # An addition that was lost may still come: what it adds is not removed.
                del certain[resource]
                self._fresh()
                certain[next(reversed(self._states))] = True
                continue
            certain[resource] &= await self._change(resource, *_SCRIPT[step])

    async def _change(self, resource: str, adds: bool, entry: Entry) -> bool:
        """Make one change; whether its first request was answered."""
        states = self._states[resource]
        entries = states[-1].entries | {entry} if adds else states[-1].entries - {entry}
        made = State(entries, self.world.now)
        states.append(made)
        once = True
        while True:
            code = await (self._add(resource, entry) if adds else self._remove(resource, entry, once))
            if code is ErrorCode.none:
                made.acked = self.world.now
                self.changes += 1
                return once
            if code is not None and code not in _PASSING:
                self.ledger.broken(_CHECK, f"changing {entry} of {resource}: {code.name}")
                return False
            once = False
            await self.pause()

    async def _add(self, resource: str, entry: Entry) -> ErrorCode | None:
        wanted = {
            "resource_type": int(ResourceType.TOPIC), "resource_name": resource,
            "resource_pattern_type": int(PatternType.LITERAL), "principal": entry.principal, "host": "*",
            "operation": int(Operation.DESCRIBE), "permission_type": int(entry.permission),
        }  # fmt: skip
        answer = await self._ask(self.rng.choice(self.wire.nodes), ApiKey.CREATE_ACLS, 3, creations=[wanted])
        return None if answer is None else answer.results[0].error_code

    async def _remove(self, resource: str, entry: Entry, first: bool) -> ErrorCode | None:
        wanted = {
            "resource_type_filter": int(ResourceType.TOPIC), "resource_name_filter": resource,
            "pattern_type_filter": int(PatternType.LITERAL), "principal_filter": entry.principal,
            "host_filter": "*", "operation": int(Operation.DESCRIBE),
            "permission_type": int(entry.permission),
        }  # fmt: skip
        answer = await self._ask(self.rng.choice(self.wire.nodes), ApiKey.DELETE_ACLS, 3, filters=[wanted])
        if answer is None:
            return None
        (result,) = answer.filter_results
        if first and result.error_code is ErrorCode.none and len(result.matching_acls) != 1:
            self.ledger.broken(_CHECK, f"removing {entry} of {resource} found {len(result.matching_acls)}")
        code: ErrorCode = result.error_code
        return code

    async def _ask(self, node: int, key: ApiKey, version: int, **fields: Any) -> Any:
        """The answer of a node; None when there was none."""
        try:
            return await self.wire.ask(node, key, version, _ANSWER_SECONDS, **fields)
        except Lost:
            await self.pause()
            return None

    async def _ask_all(self, node: int) -> None:
        while not self.stopped:
            await asyncio.sleep(self.rng.uniform(*ASK_SECONDS))
            resource = self.rng.choice(list(self._states)[-3:])
            began = self.world.now
            topic = {"name": resource, "topic_id": None}
            answer = await self._ask(
                node, ApiKey.METADATA, 12, topics=[topic], allow_auto_topic_creation=False
            )
            if answer is None:
                continue
            code = answer.topics[0].error_code
            if code not in (ErrorCode.topic_authorization_failed, ErrorCode.unknown_topic_or_partition):
                self.ledger.broken(_CHECK, f"node {node} answers {code.name} about {resource}")
                return
            self._judge(node, resource, began, code is not ErrorCode.topic_authorization_failed)

    def _judge(self, node: int, resource: str, began: float, allowed: bool) -> None:
        """Whether some state that may have been in force gives this answer."""
        self.answers += 1
        self.refusals += not allowed
        states, least = self._states[resource], self._least.get((node, resource), 0)
        if self._calm is not None:
            in_force = began - IN_FORCE_SECONDS
            known = [
                number
                for number, state in enumerate(states)
                if state.acked is not None and max(state.acked, self._calm) <= in_force
            ]
            least = max([least, *known[-1:]])
        possible = (number for number in range(least, len(states)) if states[number].allows == allowed)
        found = next(possible, None)
        if found is None:
            told = "allows" if allowed else "refuses"
            late = (
                "a second after its answer" if self._calm is not None else "from what it has answered before"
            )
            self.ledger.broken(
                _CHECK,
                f"node {node} {told} {resource} in state {least} of {len(states) - 1} or later ({late}), "
                "and none of these does",
            )
            return
        self._least[node, resource] = found
