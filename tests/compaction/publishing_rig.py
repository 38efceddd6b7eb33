"""Two nodes with local logs of one partition, whose commands end as a test says, and what level one holds.

The log is one list for both: each node sees the same state, and one of them leads. A command's entry may be
applied, refused, lost, or applied after its leader has given up on it, also when another one leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Literal, cast

from strandline.node.config.node_config import LevelOneSection, NodeConfig
from strandline.node.level_one.builder import BuilderConfig, StoreBuilder
from strandline.node.refusal import Reason, Refusal
from strandline.snapshot.level_one_format import batches_of, parse
from strandline.statemachine.controller.settings import Configs
from strandline.statemachine.partition.level_one import level_one_name
from strandline.statemachine.partition.partition_commands import AdvanceRemoval, Command, encode
from tests.compaction.logs import Plan, Written, read
from tests.compaction.upkeep_harness import CONFIG, Node, Replica, contents
from tests.level_zero.samples import started
from tests.simulation.node import SimNode
from tests.simulation.store import SimStore
from tests.simulation.world import World

KIB = 1024
Ending = Literal["apply", "refuse", "lost", "late", "limbo"]
"""How a proposal ends: applied; definitely not; unknown and never applied; unknown, and applied by then;
unknown, and applied before the next entry, or after the next leader's first."""
TABLE: Configs = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.0",
    "delete.retention.ms": "24000",
}
LEVEL_ONE = LevelOneSection(target_bytes=2 * KIB, block_bytes=400, merge_count=4)


class Member:
    """The partition's replica as one node sees it: the state is the same everywhere, leadership is not."""

    def __init__(self, replica: Partition) -> None:
        self.replica = replica
        self.leads = False
        self.leader_epoch = 0
        self.endings: list[Ending] = []
        """For the next proposals, in turn; then all are applied."""
        self.results: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.replica, name)

    async def confirm(self) -> bool:
        return self.leads

    async def execute(self, command: Command) -> Any:
        if not self.leads:
            return Refusal(Reason.NOT_LEADER, "it does not lead")
        entry = encode(self.leader_epoch, self.replica.now_ms, [command])
        ending = self.endings.pop(0) if self.endings else "apply"
        if ending == "refuse":
            return Refusal(Reason.NOT_NOW, "the log was full")
        result = None
        if ending in ("apply", "late"):
            self.replica.flush()
            result = self.replica.enter(entry)
        elif ending == "limbo":
            self.replica.limbo.append(entry)
        await asyncio.sleep(0.001)
        self.results.append(result)
        return result if ending == "apply" else Refusal(Reason.UNDECIDED, "lost leadership")


class Partition(Replica):
    """The log and the state that both nodes have."""

    def __init__(self, bucket: SimStore) -> None:
        self.limbo: list[bytes] = []
        """Entries in the log of which nobody knows whether they will count."""
        super().__init__(bucket, 1, bytes([1]) * 16, "t0", 0)

    def enter(self, entry: bytes) -> Any:
        self.index += 1
        results = self.machine.apply(self.index, self.machine.term, entry)
        return results[-1] if isinstance(results, list) else results

    def flush(self) -> None:
        """What is in the log comes before what is proposed now."""
        limbo, self.limbo = self.limbo, []
        for entry in limbo:
            self.enter(entry)

    def apply(self, *commands: Command) -> Any:
        self.flush()
        return super().apply(*commands)

    def skip_lifted(self) -> None:
        """The start offset may have passed batches that were in level zero only."""
        first = self.machine.extents.first_offset
        while self.lifted < len(self.written) and self.written[self.lifted][0] < first:
            self.lifted += 1

    # What level one holds.

    def level_one(self) -> list[bytes]:
        """Every batch in level one, all of its bytes checked."""
        found = []
        for one in self.machine.level_one:
            name = level_one_name(self.topic_id, self.number, one.term, one.unique)
            data = self.bucket.objects[name]
            footer = parse(name, data)
            assert (footer.base_offset, footer.end_offset) == (one.base_offset, one.end_offset)
            assert footer.max_timestamp == one.max_timestamp
            for block in footer.blocks:
                here = data[block.position : block.end]
                spans = batches_of(name, block, here, footer.holes)
                found += [here[at.position - block.position :][: at.length] for at in spans]
        return found

    def committed_in_level_one(self) -> list[Written]:
        """What a read-committed consumer keeps of it, and the markers, below the last stable offset."""
        rows = list(self.machine.aborted.between(0, self.machine.next_offset))
        kept = []
        for data in self.level_one():
            base = int.from_bytes(data[:8], "big")
            producer = int.from_bytes(data[43:51], "big", signed=True)
            transactional, control = data[22] & 0x10, data[22] & 0x20
            aborted = any(
                row.producer_id == producer and row.first_offset <= base < row.last_offset for row in rows
            )
            if base < self.machine.last_stable_offset and not (transactional and not control and aborted):
                kept.append(data)
        return read(kept)

    def table(self, records: list[Written], end: int) -> dict[bytes, tuple[int, bytes]]:
        """The last value of each key below an offset, from the start offset on; deleted keys have none.

        A record without a key is of no table.
        """
        found: dict[bytes, Written] = {}
        for one in records:
            if not one.marker and one.key is not None and one.offset < end:
                found[one.key] = one
        return {
            key: (one.offset, one.value)
            for key, one in found.items()
            if one.value is not None and one.offset >= self.machine.start_offset
        }

    def check(self) -> None:
        """Level one has the table that was written, and is as clean and settled as the state says."""
        machine = self.machine
        removals, reconciled = machine.removals, machine.last_reconciled_offset + 1
        stable = machine.last_stable_offset
        end = min(reconciled, stable)
        there = self.committed_in_level_one()
        history = [one for one in self.history() if one.offset < end]
        assert [one.offset for one in there] == sorted({one.offset for one in there})
        # Of transactions below the start offset the state does not know any more which were aborted.
        served = {one for one in there if one.offset >= machine.start_offset}
        assert served <= {one for one in self.history() if one.offset < reconciled}, "as it was written"
        assert self.table(there, end) == self.table(history, end), "the table is the same"
        # Offsets below the start offset are of no reader's, and the state counts them as clean.
        clean = [one for one in there if machine.start_offset <= one.offset < removals.level_one_clean]
        keys = [one.key for one in clean if not one.marker]
        assert len(set(keys)) == len(keys), "C1"
        assert None not in keys, "C2"
        last = {one.key: one for one in history if not one.marker}
        for key, one in last.items():
            gone = one.value is None and one.offset < removals.ripe_tombstones
            if key is not None and one.offset >= machine.start_offset and not gone:
                assert one in there, "C3"
        for data in self.level_one():
            base = int.from_bytes(data[:8], "big")
            if machine.start_offset <= base < removals.level_one_settled and not data[22] & 0x20:
                assert not data[22] & 0x10, "settled"

    def named(self) -> set[str]:
        """The objects that the state names, and those it still knows to be removed."""
        return {
            level_one_name(self.topic_id, self.number, one.term, one.unique)
            for one in [*self.machine.level_one, *self.machine.removed]
        }


class Rig:
    """The two nodes."""

    def __init__(self, world: World, configs: Configs) -> None:
        self.world = world
        self.bucket = SimStore(world)
        self.partition = Partition(self.bucket)
        self.nodes: list[Node] = []
        self.members: list[Member] = []
        self._configs = configs
        for number in (1, 2):
            self.members.append(Member(self.partition))
            self.nodes.append(self._node(started(world, number), self.members[-1]))
        self.leader = 0
        self._tell_leader()
        self.members[0].leads, self.members[0].leader_epoch = True, 1

    def _node(self, sim: SimNode, member: Member) -> Node:
        node = node_with(self.world, sim, self.bucket)
        node.partitions.append(cast(Any, member))
        node.topics.configs[self.partition.topic_id] = self._configs
        cast(Any, node.topics).collection_paused = False
        return node

    def restarted(self, number: int) -> Node:
        """A node's process is killed, and begins again with its disk."""
        before, member = self.nodes[number], self.members[number]
        before.sim.crash("kill")
        before.sim.start(lambda _: None)
        self.world.run(self.world.now)
        member.leads = False
        made = self._node(before.sim, member)
        made.boot_id = before.boot_id + 1
        made.leader = before.leader
        return made

    def lead(self, number: int, *, keep: bool = True) -> None:
        """Another term begins, led by a node; what was open in the log counts before it, or is lost."""
        partition = self.partition
        if keep:
            partition.flush()
        partition.limbo.clear()
        self.members[self.leader].leads = False
        partition.lead(partition.machine.term + 1)
        self.leader = number
        self._tell_leader()
        self.members[number].leads = True
        self.members[number].leader_epoch = partition.machine.term

    def _tell_leader(self) -> None:
        for node in self.nodes:
            node.leader = self.nodes[self.leader]

    def work(self, number: int, seconds: float = 11.0) -> bool:
        """One step of a node's compaction, publishing included."""
        self.wait(seconds)
        return self.nodes[number].run(self.nodes[number].upkeep.step())

    def publish(self, number: int, seconds: float = 1.0) -> bool:
        """One step of a node's publisher alone."""
        self.wait(seconds)
        return self.nodes[number].run(self.nodes[number].upkeep.publisher.step())

    def settle(self, limit: int = 200) -> None:
        """Work on both until there is nothing to do."""
        idle = 0
        for _ in range(limit):
            worked = [self.work(number) for number in (0, 1)]
            self.remove()
            idle = 0 if any(worked) else idle + 1
            if idle == 3:
                return
        raise AssertionError("it never comes to an end")

    def wait(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)
        self.partition.now_ms += int(seconds * 1000)

    def remove(self) -> None:
        """What the leader proposes when both have told it how far they are."""
        machine = self.partition.machine
        logs = [node.upkeep.log_of(self.partition.id) for node in self.nodes]
        ends = [None if one is None else one.ends(machine) for one in logs]
        if None in ends or not self.members[self.leader].leads:
            return
        reported = [one for one in ends if one is not None]
        mtro = min(*(one.mcco for one in reported), machine.removals.level_one_clean)
        mxro = min(*(one.mxfo for one in reported), machine.removals.level_one_settled)
        self.partition.apply(AdvanceRemoval(mtro, mxro, 24_000))

    def check(self) -> None:
        """Level one, and both logs, have the table that was written."""
        partition = self.partition
        partition.check()
        for node in self.nodes:
            found = node.upkeep.log_of(partition.id)
            if found is None or found.readable() is None or found.log is None:
                continue
            end = min(found.log.manifest.log_end, partition.machine.last_stable_offset)
            history = [one for one in partition.history() if one.offset < end]
            assert partition.table(contents(found), end) == partition.table(history, end)


def node_with(world: World, sim: SimNode, bucket: SimStore) -> Node:
    """As `upkeep_harness.node_on`, with all that publishing wants."""
    from strandline.node.compaction.store_compactor import StoreCompactor

    compactor = StoreCompactor(bucket.client(sim), sim.disk, loop=sim.loop, executor=sim.executor)
    config = SimpleNamespace(
        compaction=CONFIG,
        level_one=LEVEL_ONE,
        node=SimpleNamespace(id=1, data="/data"),
        cluster=SimpleNamespace(id="harbour"),
    )
    node = Node(world, sim, bucket, cast(NodeConfig, config), compactor)
    builder = StoreBuilder(bucket.client(sim), BuilderConfig(block_bytes=400), loop=sim.loop)
    cast(Any, node).level_one_builder = builder
    cast(Any, node).store = bucket.client(sim)
    return node


@contextmanager
def rig(configs: Configs = TABLE, seed: int = 1) -> Iterator[Rig]:
    with World(seed) as world:
        yield Rig(world, configs)


def fill(made: Rig, count: int, keys: int = 5, each: int = 10) -> None:
    """Batches of one record, in objects of so many."""
    for number in range(count):
        made.partition.put(Plan(((b"key %d" % (number % keys), b"value %d" % number, number),)))
        if number % each == each - 1:
            made.partition.lift()
    made.partition.lift()


def removals(made: Rig) -> tuple[int, int]:
    found = made.partition.machine.removals
    return found.level_one_clean, found.level_one_settled
