"""What must hold once the faults are over, the clients are done and the cluster is calm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from strandline.node.level_one.merging import next_merge
from strandline.node.level_one.plan import grain
from strandline.snapshot.names import SnapshotName, parse_name
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from strandline.statemachine.internal_topics import INTERNAL_TOPICS
from strandline.statemachine.object_names import PREFIX
from strandline.statemachine.partition.extent import InlineExtent, ObjectExtent
from strandline.statemachine.partition.level_one import LEVEL_ONE_PREFIX, LevelOneExtent, level_one_name
from strandline.statemachine.partition.partition import PartitionStateMachine
from tests.simulation.whole.client import Directory
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.consumers import Consumer
from tests.simulation.whole.ledger import Ledger, Sent
from tests.simulation.whole.objects import BODY, Place
from tests.simulation.whole.producers import Producer
from tests.simulation.whole.sim_broker import SimBroker


@dataclass(frozen=True, slots=True)
class Content:
    """What a partition has, from `start` to `end`; the first batch may begin before."""

    start: int
    end: int
    batches: list[tuple[int, Sent]]


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
    yield "level-one objects undecided", broker.level_one.status().undecided_objects
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
        yield f"permits {of}", partition.fence.permits
        yield f"waiters {of}", partition.fence.waiting
        yield f"batches pending {of}", partition.writer.acks.batches
        yield f"bytes pending {of}", partition.writer.acks.bytes
        yield f"lanes {of}", len(partition.writer._lanes)
        yield f"entries pending {of}", partition.writer.acks.entries
        yield f"watchers {of}", len(partition._watchers)
        yield f"epochs held by reads {of}", partition._batches.holds.oldest_epoch or 0


def contents(cluster: WholeCluster) -> dict[Place, Content]:
    """What every partition holds, by its newest state and the bytes in the store."""
    found: dict[Place, Content] = {}
    machine = cluster.newest().controller.machine
    for topic in machine.topics:
        if topic.name in INTERNAL_TOPICS:
            continue
        for number, partition in enumerate(topic.partitions):
            place = Place(topic.topic_id, number)
            newest = cluster.ledger.objects.newest(partition.group)
            assert newest is not None
            found[place] = content_of(cluster, place, newest)
    return found


def content_of(cluster: WholeCluster, place: Place, machine: PartitionStateMachine) -> Content:
    """What a partition holds in this state."""
    ledger, found = cluster.ledger, []
    following: int | None = None
    for base, end, body in _pieces(cluster, place, machine):
        batch = ledger.sent.get(body)
        if following is None and not base <= machine.start_offset < end:
            ledger.broken("offsets", f"{place} begins at {machine.start_offset}, its first batch at {base}")
        elif following not in (None, base):
            ledger.broken("offsets", f"{place}: {following} comes next, and a batch is at {base}")
        following = end
        if is_control(body):
            continue
        if batch is None:
            ledger.broken("stored", f"{place} at {base}: its object has no batch of ours there")
        elif batch.records != end - base:
            ledger.broken("stored", f"{batch} has {batch.records} records, its extent {end - base}")
        elif end > machine.start_offset:
            found.append((base, batch))
    if (machine.start_offset if following is None else following) != machine.high_watermark:
        ledger.broken("offsets", f"{place} ends at {following}, not at {machine.high_watermark}")
    return Content(machine.start_offset, machine.high_watermark, found)


def _pieces(
    cluster: WholeCluster, place: Place, machine: PartitionStateMachine
) -> Iterator[tuple[int, int, bytes]]:
    """(base offset, end offset, bytes behind what is stamped) of every batch that is not below the start."""
    for one in machine.level_one:
        batches = cluster.ledger.objects.batches(place, one)
        for number, (base, _, body) in enumerate(batches):
            end = batches[number + 1][0] if number + 1 < len(batches) else one.end_offset
            if end > machine.start_offset:
                yield base, end, body
    for extent in machine.extents:
        if isinstance(extent, InlineExtent):
            yield extent.base_offset, extent.end_offset, extent.data[BODY:]
            continue
        assert isinstance(extent, ObjectExtent)
        data = cluster.store.objects.get(extent.object_name, b"")
        yield (
            extent.base_offset,
            extent.end_offset,
            data[extent.position : extent.position + extent.length][BODY:],
        )


def is_control(body: bytes) -> bool:
    """Whether a batch, from behind what is stamped, is a transaction's marker."""
    return bool(int.from_bytes(body[5:7], "big") & 0x20)


def check_topics(cluster: WholeCluster, directory: Directory) -> None:
    """The topics are those that were created and not deleted."""
    machine = cluster.newest().controller.machine
    there = {
        topic.topic_id: (topic.name, len(topic.partitions))
        for topic in machine.topics
        if topic.name not in INTERNAL_TOPICS
    }
    wanted = {topic.topic_id: (topic.name, topic.partitions) for topic in directory.live(stable=False)}
    if there != wanted:
        cluster.ledger.broken("topics", f"there are {sorted(there.values())}, not {sorted(wanted.values())}")


def check_contents(
    ledger: Ledger, found: dict[Place, Content], producers: list[Producer], directory: Directory
) -> None:
    """Everything acknowledged is there once, where it was said, in order; nothing refused is there."""
    at = {batch: offset for content in found.values() for offset, batch in content.batches}
    for place, content in found.items():
        times = Counter(batch for _, batch in content.batches)
        for batch, count in times.items():
            if count > 1:
                ledger.broken("once", f"{batch} is there {count} times")
            if batch.place != place:
                ledger.broken("address", f"{batch} is in {place}")
        for offset, batch in ledger.seen.get(place, {}).items():
            if at.get(batch) != offset and offset + batch.records > content.start:
                ledger.broken("still there", f"{batch} was at {offset}, and is at {at.get(batch)}")
    for batch in ledger.sent.values():
        if batch.place not in found:
            continue
        retained = batch.acked is not None and batch.acked + batch.records > found[batch.place].start
        if retained and at.get(batch) != batch.acked:
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
        content = found[lane.place]
        numbers = [batch.number for _, batch in content.batches if batch.producer == lane.identity]
        if lane.lost:
            # The broker that remembers less refuses what follows, or has forgotten the producer.
            if numbers != sorted(set(numbers)):
                ledger.broken("order", f"the batches of {lane.identity} in {lane.place} are {numbers}")
            continue
        first = lane.made - len(numbers) if content.start else 0
        if numbers != list(range(first, lane.made)):
            ledger.broken("order", f"the batches of {lane.identity} in {lane.place} are {numbers}")


def check_reader(ledger: Ledger, found: dict[Place, Content], reader: Consumer) -> None:
    """A consumer that began when all was over has read everything."""
    for place, content in found.items():
        at = reader.positions.get(place, 0)
        if at != content.end:
            ledger.broken("reader", f"{reader.name} is at {at} of {place}, not {content.end}")
        for offset, batch in content.batches:
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


def not_drained(cluster: WholeCluster, *, merged: bool) -> str | None:
    """What is in the store that nobody needs, or not in level one yet; None when all is as it must stay.

    With `merged`, level one has nothing left to merge either.
    """
    objects, store = cluster.ledger.objects, cluster.store
    places = objects.places()
    wanted: dict[str, None] = {}
    for group, place in places.items():
        machine = objects.newest(group)
        if machine is None:
            return f"{place} has no leader yet"
        if len(machine.extents):
            return f"{place} has {len(machine.extents)} batches in level zero"
        for one in machine.level_one:
            wanted[level_one_name(*place, one.term, one.unique)] = None
        if merged and (run := _mergeable(cluster, place, machine)):
            return f"{len(run)} objects of {place} are to be merged"
        if machine.removed:
            return f"{place} has {len(machine.removed)} removed objects that are not forgotten"
    names = store.keys(PREFIX)
    if names:
        bounds = {str(place): objects.bound(group) for group, place in places.items()}
        return f"{len(names)} objects are in level zero, the first is {names[0]}; M(p): {bounds}"
    unnamed = [name for name in store.keys(LEVEL_ONE_PREFIX) if name not in wanted]
    if unnamed:
        return f"{len(unnamed)} objects of level one are named by nobody: {unnamed[0]}"
    controller = objects.controller()
    topics = () if controller is None else controller.topics
    groups = {partition.group for topic in topics for partition in topic.partitions}
    gone = [name for name in store.keys("snapshots/") if not _wanted(name, groups)]
    return f"{gone[0]} belongs to no partition that is there" if gone else None


def _mergeable(
    cluster: WholeCluster, place: Place, machine: PartitionStateMachine
) -> Sequence[LevelOneExtent]:
    controller, section = cluster.ledger.objects.controller(), cluster.plan.level_one
    topic = None if controller is None else controller.topic_by_id(place.topic_id)
    configs = {} if topic is None else topic.configs
    return next_merge(list(machine.level_one), section.merge_count, grain(configs, section))


def _wanted(name: str, groups: set[int]) -> bool:
    group = parse_name(name).group
    return group == CONTROLLER_GROUP or group in groups
