"""What must hold once the faults are over, the clients are done and the cluster is calm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from snapshot.names import SnapshotName, parse_name
from statemachine.controller_state import CONTROLLER_GROUP
from statemachine.extents import Extent, ObjectExtent
from tests.simulation.whole.client import Directory
from tests.simulation.whole.cluster import SimBroker, WholeCluster
from tests.simulation.whole.consumers import Consumer
from tests.simulation.whole.ledger import BODY, Ledger, Place, Sent
from tests.simulation.whole.producers import Producer

Content = list[tuple[int, Sent]]


def left_over(broker: SimBroker) -> str | None:
    """What a node without clients and work still holds; None when it holds nothing."""
    for what, figure in _figures(broker):
        if figure:
            return f"node {broker.node_id}: {figure} {what}"
    return None


def _figures(broker: SimBroker) -> Iterator[tuple[str, int]]:
    yield "bytes staged", broker.batcher.staged_bytes
    yield "batches staged", broker.batcher.staged_batches
    yield "bytes gathered", broker.batcher.gathered_bytes
    yield "uploads", broker.batcher.uploads
    yield "bytes being read", broker.reader.loading_bytes
    yield "documents not published", broker.publisher.measures.waiting
    yield "connections", broker.kafka.connections
    yield "bytes of requests", broker.kafka.request_bytes
    yield "calls pending", len(broker.calls._pending)
    yield "calls served", sum(broker.calls._serving.values())
    yield "waits for the controller", len(broker.controller._waiting)
    for group in broker.host.groups.values():
        yield f"commands pending in group {group.id}", len(group.waiting)
        yield f"bytes pending in group {group.id}", group.waiting_bytes
    for partition in broker.partitions:
        of = f"in {partition.topic}-{partition.number}"
        yield f"holds {of}", partition.fence.holds
        yield f"waiters {of}", partition.fence.waiting
        yield f"batches pending {of}", partition.writer.batches
        yield f"bytes pending {of}", partition.writer.bytes
        yield f"lanes {of}", len(partition.writer._lanes)
        yield f"entries pending {of}", len(partition.writer._in_log)
        yield f"watchers {of}", len(partition._watchers)


def contents(cluster: WholeCluster) -> dict[Place, Content]:
    """What every partition holds, by its leader's extents and the bytes in the store."""
    found: dict[Place, Content] = {}
    machine = cluster.newest().controller.machine
    for topic in machine.topics:
        for number, partition in enumerate(topic.partitions):
            place = Place(topic.topic_id, number)
            leader = cluster.leader(partition.group)
            assert leader is not None
            replica = leader.partitions.get(topic.topic_id, number)
            assert replica is not None
            found[place] = list(_content(cluster, place, replica.machine.extents))
    return found


def _content(cluster: WholeCluster, place: Place, extents: Iterable[Extent]) -> Iterator[tuple[int, Sent]]:
    ledger, following = cluster.ledger, 0
    for extent in extents:
        assert isinstance(extent, ObjectExtent)
        data = cluster.store.objects.get(extent.object_name, b"")
        batch = ledger.sent.get(data[extent.position : extent.position + extent.length][BODY:])
        if extent.base_offset != following:
            ledger.broken(
                "offsets", f"{place}: {following} comes next, and the extent is at {extent.base_offset}"
            )
        following = extent.end_offset
        if batch is None:
            ledger.broken("stored", f"{place} at {extent.base_offset}: its object has no batch of ours there")
        elif batch.records != extent.record_count:
            ledger.broken("stored", f"{batch} has {batch.records} records, its extent {extent.record_count}")
        else:
            yield extent.base_offset, batch


def check_topics(cluster: WholeCluster, directory: Directory) -> None:
    """The topics are those that were created and not deleted."""
    machine = cluster.newest().controller.machine
    there = {topic.topic_id: (topic.name, len(topic.partitions)) for topic in machine.topics}
    wanted = {topic.topic_id: (topic.name, topic.partitions) for topic in directory.live(stable=False)}
    if there != wanted:
        cluster.ledger.broken("topics", f"there are {sorted(there.values())}, not {sorted(wanted.values())}")


def check_contents(
    ledger: Ledger, found: dict[Place, Content], producers: list[Producer], directory: Directory
) -> None:
    """Everything acknowledged is there once, where it was said, in order; nothing refused is there."""
    at = {batch: offset for content in found.values() for offset, batch in content}
    for place, content in found.items():
        times = Counter(batch for _, batch in content)
        for batch, count in times.items():
            if count > 1:
                ledger.broken("once", f"{batch} is there {count} times")
            if batch.place != place:
                ledger.broken("address", f"{batch} is in {place}")
        for offset, batch in ledger.seen.get(place, {}).items():
            if at.get(batch) != offset:
                ledger.broken("still there", f"{batch} was at {offset}, and is at {at.get(batch)}")
    for batch in ledger.sent.values():
        if batch.place not in found:
            continue
        if batch.acked is not None and at.get(batch) != batch.acked:
            ledger.broken("acknowledged and lost", f"{batch}, at {batch.acked}, is at {at.get(batch)}")
        if batch.refused is not None and batch in at:
            ledger.broken("refused and there", f"{batch} was refused ({batch.refused}), is at {at[batch]}")
    for producer in producers:
        _check_order(ledger, found, producer, at)


def _check_order(
    ledger: Ledger, found: dict[Place, Content], producer: Producer, at: dict[Sent, int]
) -> None:
    if not producer.idempotent:
        newest: dict[tuple[Place, int], int] = {}
        for batch in producer.sent:
            if batch in at:
                line = (batch.place, batch.connection)
                if at[batch] < newest.get(line, -1):
                    ledger.broken("order", f"{batch} lies before one sent before it")
                newest[line] = at[batch]
        return
    for lane in producer.lanes:
        if lane.place not in found or lane.abandoned:
            continue
        numbers = [batch.number for _, batch in found[lane.place] if batch.producer == lane.identity]
        if numbers != list(range(lane.made)):
            ledger.broken("order", f"the batches of {lane.identity} in {lane.place} are {numbers}")


def check_reader(ledger: Ledger, found: dict[Place, Content], reader: Consumer) -> None:
    """A consumer that began when all was over has read everything."""
    for place, content in found.items():
        end = content[-1][0] + content[-1][1].records if content else 0
        if reader.positions.get(place, 0) != end:
            ledger.broken(
                "reader", f"{reader.name} is at {reader.positions.get(place, 0)} of {place}, not {end}"
            )
        for offset, batch in content:
            if ledger.seen[place].get(offset) is not batch:
                ledger.broken("reader", f"{batch} is at {offset} and was not read there")


def check_documents(cluster: WholeCluster) -> int:
    """The replicas' documents of one checkpoint are equal; how many there are."""
    documents: dict[tuple[int, int], tuple[int, bytes]] = {}
    count = 0
    for key in cluster.store.keys("snapshots/"):
        name = parse_name(key)
        if isinstance(name, SnapshotName):
            count += 1
            node, data = documents.setdefault(
                (name.group, name.log_index), (name.node, cluster.store.objects[key])
            )
            if cluster.store.objects[key] != data:
                cluster.ledger.broken(
                    "published checkpoints",
                    f"group {name.group} at {name.log_index}: those of nodes {node} and {name.node} differ",
                )
    return count


def check_epochs(cluster: WholeCluster) -> None:
    """No node is ahead of the cluster epoch, and no partition's window is."""
    newest = cluster.newest().controller.machine.cluster_epoch
    for broker in cluster.brokers.values():
        if broker.epoch.current() > newest:
            cluster.ledger.broken("cluster epoch", f"node {broker.node_id} is ahead of {newest}")
        for group, hosted in broker.host.groups.items():
            partition = broker.partitions.by_group(group)
            if group != CONTROLLER_GROUP and partition is not None:
                plain = partition.machine
                if (
                    not plain.creation_epoch
                    <= plain.previous_applied_epoch
                    <= plain.max_applied_epoch
                    <= newest
                ):
                    cluster.ledger.broken("applied epochs", f"group {group}: {hosted.status()}")
