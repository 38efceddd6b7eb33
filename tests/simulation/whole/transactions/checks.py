"""What must hold of transactions once nothing goes wrong any more: nothing stays open or undecided."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.internal_topics import INTERNAL_TOPICS
from strandline.statemachine.transactions.transactions import TransactionsMachine
from tests.histories.history import Place as Named
from tests.simulation.whole.client import TopicKnown
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.sim_broker import SimBroker
from tests.simulation.whole.transactions.followers import Follower
from tests.simulation.whole.transactions.workers import WORKERS


def coordinators(cluster: WholeCluster) -> Iterator[tuple[str, Any]]:
    """Name and state of every coordinator's partition, where it is led; None where it is not."""
    for topic in cluster.newest().controller.machine.topics:
        if topic.name in INTERNAL_TOPICS:
            for number, partition in enumerate(topic.partitions):
                leader = cluster.leader(partition.group)
                replica = None if leader is None else leader.coordinators.by_group(partition.group)
                leads = replica is not None and replica.leads
                yield f"{topic.name}-{number}", replica.machine if leads and replica is not None else None


def still_open(cluster: WholeCluster, prefix: str) -> str | None:
    """What is not decided, or not told everywhere, of the transactional ids that begin so; None: nothing.

    With an empty prefix nothing may be open in any partition or group either.
    """
    for name, machine in coordinators(cluster):
        if machine is None:
            return f"{name} is led by nobody"
        if isinstance(machine, TransactionsMachine):
            for one in (*machine.prepared, *machine.ongoing):
                if one.transactional_id.startswith(prefix):
                    return f"transaction {one.number} of {one.transactional_id} is {one.state.value}"
        elif isinstance(machine, GroupsMachine) and not prefix:
            for group_id, group in machine.groups.items():
                pending = [producer for producer, rows in group.offsets.pending.items() if rows]
                if pending:
                    return f"producers {pending} have pending offsets of {group_id} in {name}"
    return None if prefix else _unstable(cluster)


def _unstable(cluster: WholeCluster) -> str | None:
    for topic in cluster.newest().controller.machine.topics:
        if topic.name in INTERNAL_TOPICS:
            continue
        for number, partition in enumerate(topic.partitions):
            leader = cluster.leader(partition.group)
            replica = None if leader is None else leader.partitions.get(topic.topic_id, number)
            if replica is None:
                return f"{topic.name}-{number} is led by nobody"
            if replica.machine.last_stable_offset != replica.high_watermark:
                open_ = [one[0] for one in replica.machine.producers if one.open_first_offset >= 0]
                return (
                    f"{topic.name}-{number} is stable up to {replica.machine.last_stable_offset} of"
                    f" {replica.high_watermark}: open are transactions of {open_}"
                )
    return None


def not_consumed(cluster: WholeCluster, topic: TopicKnown, follower: Follower) -> str | None:
    """Which committed record of a topic the workers' group has not committed yet."""
    committed: dict[int, int] = {}
    for _, machine in coordinators(cluster):
        if isinstance(machine, GroupsMachine) and WORKERS in machine.groups:
            rows = machine.groups[WORKERS].offsets.committed.get(topic.topic_id, {})
            committed = {partition: row.offset for partition, row in rows.items()}
    for number in range(topic.partitions):
        reads = follower.found.get(Named(topic.name, number), [])
        if reads and reads[-1].offset >= committed.get(number, 0):
            return f"{topic.name}-{number} is consumed up to {committed.get(number)} of {reads[-1].offset}"
    return None


def check_offsets(cluster: WholeCluster) -> None:
    """Coordinators have nothing of what is over: rows of ended transactions, duplicates of places."""
    for name, machine in coordinators(cluster):
        if isinstance(machine, TransactionsMachine):
            for one in machine.transactions.values():
                if one.partitions or one.groups:
                    cluster.ledger.broken("transactions", f"{name}: {one.transactional_id} holds something")


def transactions_left_over(broker: SimBroker) -> str | None:
    """What a node still holds for transactions when no client is left."""
    for partition in broker.partitions:
        if len(partition.writer.acks.verifications):
            return f"node {broker.node_id}: verifications in {partition.topic}-{partition.number}"
    for runtime in broker.coordinators.led_transactions():
        if runtime._waits or runtime._waiting:
            return f"node {broker.node_id}: {runtime._waits} requests wait for transactions"
    for replica in broker.coordinators:
        if replica._in_log:
            return f"node {broker.node_id}: {len(replica._in_log)} commands of {replica.place} are unanswered"
    return None
