"""A bucket with level-zero objects, a log for each partition, and a builder."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.node.level_one.builder import BuilderConfig, BuildFailed, Output, StoreBuilder
from strandline.snapshot.level_one_format import LevelOneFooter, batches_of, parse
from strandline.snapshot.level_zero_format import Batch, encode
from strandline.statemachine.object_names import object_name
from strandline.statemachine.partition.extent import Extent, InlineExtent, ObjectExtent
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name
from tests.level_one.stamped import Sent, stamped
from tests.level_zero.samples import identity, run, started
from tests.simulation.store import SimStore
from tests.simulation.world import World

CONFIG = BuilderConfig(block_bytes=400, join_gap_bytes=300, max_get_bytes=1500, max_gets=3, max_puts=2)


def unique(number: int) -> bytes:
    return number.to_bytes(16, "big")


class Case:
    """A bucket with level-zero objects, a log for each partition, and a builder."""

    def __init__(self, config: BuilderConfig = CONFIG) -> None:
        self.world = World(1)
        self.node = started(self.world)
        self.sim = SimStore(self.world)
        self.builder = StoreBuilder(self.sim.client(self.node), config, loop=self.node.loop)
        self.logs: dict[tuple[bytes, int], list[tuple[Sent, Extent]]] = {}

    def end(self, topic_id: bytes, partition: int) -> int:
        log = self.logs.get((topic_id, partition))
        return log[-1][1].end_offset if log else 40

    def store(self, number: int, batches: Sequence[tuple[bytes, int, Sent]], epoch: int = 4) -> None:
        """A level-zero object; its batches are appended to their partitions' logs."""
        made = encode(epoch, identity(number), [Batch(t, p, batch.data) for t, p, batch in batches])
        self.sim.objects[object_name(epoch, identity(number))] = b"".join(made.parts)
        for (topic_id, partition, batch), position in zip(batches, made.positions, strict=True):
            base, length = self.end(topic_id, partition), len(batch.data)
            extent = ObjectExtent(
                base,
                batch.records,
                batch.term,
                batch.max_timestamp,
                length,
                epoch,
                position,
                identity(number),
            )
            self.logs.setdefault((topic_id, partition), []).append((batch, extent))

    def inline(self, topic_id: bytes, partition: int, batch: Sent) -> None:
        base, length = self.end(topic_id, partition), len(batch.data)
        extent = InlineExtent(base, batch.records, batch.term, batch.max_timestamp, length, batch.data)
        self.logs.setdefault((topic_id, partition), []).append((batch, extent))

    def output(self, topic_id: bytes, partition: int, number: int = 1) -> Output:
        extents = [extent for _, extent in self.logs[topic_id, partition]]
        return Output(topic_id, partition, 3, unique(number), extents)

    def outputs(self) -> list[Output]:
        return [self.output(*key, number) for number, key in enumerate(self.logs)]

    def build(self, outputs: Sequence[Output]) -> list[LevelOneExtent | BuildFailed]:
        return run(self.world, self.node, self.builder.build(outputs))

    def footer(self, topic_id: bytes, partition: int, extent: LevelOneExtent | BuildFailed) -> LevelOneFooter:
        assert isinstance(extent, LevelOneExtent), extent
        name = level_one_name(topic_id, partition, extent.term, extent.unique)
        return parse(name, self.sim.objects[name])

    def check(self, topic_id: bytes, partition: int, extent: LevelOneExtent | BuildFailed) -> None:
        """That an object holds its partition's log, stamped, and is what its extent says."""
        footer = self.footer(topic_id, partition, extent)
        assert isinstance(extent, LevelOneExtent)
        name = level_one_name(topic_id, partition, extent.term, extent.unique)
        data = self.sim.objects[name]
        found = []
        for block in footer.blocks:
            spans = batches_of(name, block, data[block.position : block.end])
            found += [data[span.position : span.position + span.length] for span in spans]
        log = self.logs[topic_id, partition]
        assert found == [stamped(batch, extent.base_offset) for batch, extent in log]
        assert (extent.size, extent.base_offset) == (len(data), log[0][1].base_offset)
        assert extent.end_offset == log[-1][1].end_offset
        assert extent.max_timestamp == max(batch.max_timestamp for batch, _ in log)

    @property
    def gets(self) -> int:
        return self.sim.requests.get("get_range", 0)
