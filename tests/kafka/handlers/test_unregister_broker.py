"""UnregisterBroker, as `kafka-cluster unregister` asks for it."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.apis import ApiKey
from strandline.statemachine.controller.controller_commands import FenceNode, Heartbeat, RemoveNode
from strandline.statemachine.controller.feature_levels import REMOVAL, TARGETS
from tests.kafka.handlers.fake_cluster import Cluster
from tests.kafka.handlers.fake_node import FakeNode
from tests.runtime.jumping_loop import run


def test_a_dead_node_without_replicas_is_forgotten_and_any_other_is_refused_with_the_reason() -> None:
    async def test() -> None:
        cluster = Cluster()
        (topic,) = [cluster.create("t", 1, 2)]
        node = FakeNode(cluster)
        state = cluster.leader._state
        idle = next(one for one in state.nodes if one not in topic.partitions[0].replicas)
        held = next(one for one in topic.partitions[0].replicas if one != node.controller.leader)

        async def asked(broker: int) -> tuple[ErrorCode, str]:
            answer = await node.ask(ApiKey.UNREGISTER_BROKER, 0, broker_id=broker)
            return answer.error_code, answer.error_message or ""

        code, message = await asked(idle)
        assert (code, f"needs feature level {REMOVAL}" in message) == (ErrorCode.unsupported_version, True)
        state.feature_level = node.controller.machine._state.feature_level = REMOVAL
        code, message = await asked(idle)
        assert (code, "is alive: stop its process first" in message) == (ErrorCode.invalid_request, True)
        code, message = await asked(99)
        assert (code, message) == (ErrorCode.broker_id_not_registered, "Node 99 is not registered.")
        for none in (-1, 0, 2**16, 2**31 - 1):
            assert await asked(none) == (code, f"Node {none} is not registered.")
        for dead in (idle, held):
            cluster.apply(FenceNode(dead, state.nodes[dead].heard_index, 1_000))
        code, message = await asked(held)
        assert (code, "has replicas of t" in message) == (ErrorCode.invalid_request, True)
        cluster.apply(Heartbeat(held, state.nodes[held].boot_id, 1_000))
        state.feature_level = node.controller.machine._state.feature_level = TARGETS
        assert await asked(idle) == (ErrorCode.none, "")
        assert idle not in cluster.leader.nodes
        assert node.controller.submitted[-1] == RemoveNode(idle, 2), "that folder and no later one"

    run(test)
