"""The change of a topic's replication factor: planned and refused before anything is done, begun, awaited."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from strandline.cluster.admin_client import first_answer
from strandline.cluster.failure import CommandFailed
from strandline.cluster.reassignment_client import ReassignmentClient, Replicas
from strandline.cluster.replica_choice import with_factor
from strandline.cluster.target import Target
from strandline.statemachine.controller.topic_config import MIN_INSYNC_REPLICAS

_POLL_SECONDS: Final = 0.5


@contextmanager
def factor_change(where: Target, topic: str, factor: int | None) -> Iterator[FactorChange | None]:
    """A change to `factor` while the block lasts; None where none is asked for."""
    if factor is None:
        yield None
        return
    client = ReassignmentClient(where.bootstrap)
    try:
        yield FactorChange(client, topic, factor, _drained(where))
    finally:
        client.close()


def _drained(where: Target) -> set[int]:
    """Nodes that are being drained: Kafka's requests tell of none, and the controller refuses them."""
    if not where.admin_known:
        return set()
    nodes = first_answer(where.admin, "GET", "/api/nodes")["nodes"]
    return {node["node"] for node in nodes if node["draining"]}


class FactorChange:
    """Of one topic to `factor` replicas of each partition. Everything raises CommandFailed."""

    def __init__(self, client: ReassignmentClient, topic: str, factor: int, drained: Collection[int]) -> None:
        self._client = client
        self._topic = topic
        self._factor = factor
        self._drained = drained

    def check(self, configs: Mapping[str, str]) -> None:
        """Refuse what could not be begun, or would not take records, with this configuration of the topic."""
        self._targets()
        least = MIN_INSYNC_REPLICAS.of(configs)
        if least > self._factor:
            raise CommandFailed(
                f"topic {self._topic} cannot have {self._factor} replicas of each partition: "
                f"its min.insync.replicas is {least}, so no record could be acknowledged with acks=all",
                f"lower that with it: --config min.insync.replicas={self._factor}",
            )

    def begin(self) -> None:
        """Begin the moves of all partitions that have another number of replicas, or of none."""
        self._client.move(self._topic, self._targets())

    def _targets(self) -> dict[int, Replicas]:
        """Refuses a factor that nodes have no room for, and moves under way to another factor."""
        placement = self._client.placement(self._topic)
        racks = {node: rack for node, rack in placement.racks.items() if node not in self._drained}
        most = max(map(len, placement.partitions), default=0)
        if len(racks) < self._factor and most < self._factor:
            drained = " and not drained" if self._drained else ""
            raise CommandFailed(
                f"topic {self._topic} cannot have {self._factor} replicas of each partition: "
                f"{len(racks)} nodes are alive{drained}",
                "ask for no more replicas than that, or start or add nodes (`strandline cluster status`)",
            )
        moving = self._client.moving(self._topic, len(placement.partitions))
        others = [number for number, target in moving.items() if len(target) != self._factor]
        if others:
            raise CommandFailed(
                f"partitions of topic {self._topic} are moving already: {_numbers(others)}",
                "wait until they are there (`strandline topic describe`), or cancel that with "
                "kafka-reassign-partitions --cancel",
            )
        try:
            chosen = with_factor(placement.partitions, self._factor, racks, placement.totals)
        except ValueError as error:
            raise CommandFailed(
                f"topic {self._topic} cannot have {self._factor} replicas of each partition: {error}",
                "start the nodes that are away, or add some (`strandline cluster status`)",
            ) from None
        return {
            number: target
            for number, (target, present) in enumerate(zip(chosen, placement.partitions, strict=True))
            if number not in moving and len(present) != self._factor
        }

    def wait(self, count: int, seconds: float, say: Callable[[str], None]) -> int:
        """Wait until no partition of the first `count` moves, for `seconds` at most; how many still do."""
        began, most = time.monotonic(), 0
        while left := len(self._client.moving(self._topic, count)):
            most = max(most, left)
            passed = time.monotonic() - began
            gone = most - left
            rest = f", about {passed / gone * left:.0f} s" if gone else ""
            say(f"topic {self._topic}: {left} of {most} partitions to go{rest}")
            if passed >= seconds:
                break
            time.sleep(_POLL_SECONDS)
        return left


def _numbers(numbers: list[int]) -> str:
    shown = ", ".join(map(str, sorted(numbers)[:5]))
    return f"{shown} and {len(numbers) - 5} more" if len(numbers) > 5 else shown
