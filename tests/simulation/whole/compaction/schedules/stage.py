"""A set piece's stage: its nodes and copies, what is written, and steps that many set pieces have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from strandline.node.kafka.wire.record_batch import read_header
from strandline.node.partition.batch import ProducedBatch
from strandline.node.refusal import Refusal
from strandline.statemachine.controller.controller_commands import (
    AlterTopicConfigs,
    ConfigChange,
    ConfigOperation,
)
from strandline.statemachine.partition.partition_commands import Appended, Command, SetStartOffset
from strandline.statemachine.partition.rejection import Rejected
from tests.kafka.wire.batches import Record, build
from tests.simulation.whole.compaction.schedules.copies import CopiesOnNodes
from tests.simulation.whole.compaction.schedules.nodes import PATIENCE
from tests.simulation.whole.compaction.schedules.plan import ALL
from tests.simulation.whole.ledger import Sent
from tests.simulation.whole.objects import BODY
from tests.simulation.whole.plan import Plan
from tests.simulation.whole.retention import START_MS
from tests.simulation.world import World

K: Final = b"K"
TRANSACTIONAL: Final = 0x10


@dataclass(slots=True)
class _Producer:
    """A producer with an id; it has at most one transaction open."""

    sequence: int = 0
    transaction: int = 0
    open: bool = False


class Stage(CopiesOnNodes):
    """All that a set piece can do. Everything is said of its one partition."""

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, plan)
        self._producers: dict[int, _Producer] = {}
        self._written = 0
        self.last_base = 0
        """Base offset of the newest batch."""

    # Writing.

    def put(
        self,
        *records: tuple[bytes, bytes | None],
        producer: int | None = None,
        transactional: bool = True,
        time: int | None = None,
    ) -> int:
        """Write a batch through the leader; its base offset. `producer`: with its id, in its transaction."""
        made = [
            Record(value, self.time_ms + number if time is None else time, key)  # type: ignore[arg-type]
            for number, (key, value) in enumerate(records)
        ]
        self._written += len(records)
        identity, transaction = (-1, -1, -1), -1
        if producer is not None:
            known = self._producers.setdefault(producer, _Producer())
            identity = (producer, 0, known.sequence)
            known.sequence += len(records)
            if transactional:
                known.transaction += not known.open
                known.open, transaction = True, known.transaction
        data = build(made, producer=identity, attributes=TRANSACTIONAL if transaction > 0 else 0)
        header = read_header(data)
        sent = Sent("a set piece", self._written, self.place, len(records), data[BODY:], producer is not None)
        self.ledger.made(sent)
        self.last_sent = ProducedBatch(data, len(records), header.max_timestamp, *identity, 0, transaction)
        self.last_base = self.send(self.last_sent).base_offset
        return self.last_base

    def send(self, batch: ProducedBatch) -> Appended:
        """Send a batch to the leader, once more perhaps."""
        node = self.leader

        async def append() -> Any:
            return await self.partition(node).append(batch)

        appended = self.run(node, append())
        assert isinstance(appended, Appended), appended
        return appended

    def end(self, producer: int, *, commit: bool) -> int:
        """End a producer's transaction; the offset of its marker."""
        known, node = self._producers[producer], self.leader
        known.open = False
        ended = self.partition(node).end_transaction(producer, 0, known.transaction, commit, 1)
        assert self.run(node, ended) is None
        self.last_base = self.machine.next_offset - 1
        return self.last_base

    @property
    def time_ms(self) -> int:
        """The timestamp of the next record."""
        return START_MS + self._written

    def fill(self, count: int = 8) -> int:
        """Write other keys, in one batch; its base offset."""
        return self.put(*((b"other %d" % number, b"%d" % self._written) for number in range(count)))

    def begin_at(self, offset: int) -> None:
        """Delete the records below an offset."""
        self.ledger.retention.asked("table", 0, offset)
        self.execute(SetStartOffset(offset))

    def execute(self, command: Command) -> None:
        """Have the leader carry out a command, which must not be refused."""
        node = self.leader
        result = self.run(node, self.partition(node).execute(command))
        assert not isinstance(result, (Refusal, Rejected)), result

    def configure(self, **configs: str) -> None:
        """Change settings of the topic, and wait until every node that is up knows."""
        changes = [
            ConfigChange(ConfigOperation.SET, name.replace("_", "."), value)
            for name, value in configs.items()
        ]
        node = self.leader
        self.run(
            node, self.brokers[node].controller.submit(AlterTopicConfigs(self.topic_id, changes), PATIENCE)
        )
        version = self.brokers[node].controller.machine.version
        self.wait(
            "all know the settings",
            lambda: all(one.controller.machine.version >= version for one in self.brokers.values()),
        )

    # Steps that many set pieces have.

    def cleaned(self, *nodes: int) -> None:
        """Wait until these logs have all there is, and are clean to their last batch."""
        self.wait(f"nodes {nodes or ALL} clean", lambda: all(map(self.is_clean, nodes or ALL)))

    def is_clean(self, node: int) -> bool:
        end = self.machine.next_offset
        return self.log_end(node) == end and self.clean_end(node) >= self.last_base

    def filled(self, *nodes: int) -> None:
        """Wait until these logs have all there is, clean or not."""
        self.wait(
            f"nodes {nodes or ALL} are filled",
            lambda: all(self.log_end(node) == self.machine.next_offset for node in nodes or ALL),
        )

    def published(self) -> None:
        """Wait until level one is as clean as the leader's log."""
        removals = self.machine.removals
        self.wait("level one is published", lambda: removals.level_one_clean >= self.clean_end(self.leader))

    def removed(self, offset: int) -> None:
        """Wait until MTRO is above an offset."""
        self.wait(f"MTRO passes {offset}", lambda: self.machine.removals.mtro > offset)

    def ripened(self, offset: int) -> None:
        """Wait until tombstones and markers at an offset may go."""

        def ripe() -> bool:
            removals = self.machine.removals
            return min(removals.ripe_tombstones, removals.ripe_markers) > offset

        self.wait(f"{offset} is ripe", ripe)

    def all_clean(self, *, value: bytes = b"v") -> int:
        """A value of K, and other keys behind it, that every copy is clean past; the value's offset."""
        self.fill()
        offset = self.put((K, value))
        self.fill()
        self.fill(1)
        self.cleaned()
        self.removed(offset)
        return offset

    def quiet(self) -> None:
        """Let everything go on, and wait until all copies have all there is and all that is ripe has gone."""
        self._held.clear()
        for node in ALL:
            if node not in self.brokers:
                self.up(node)
        self.fill(1)
        self.cleaned()
        self.published()
        self.removed(self.last_base - 1)
        self.ripened(self.last_base - 1)
        self.pass_time(0.5)
        self.cleaned()
        self.check_copies()
        self.check_table(self.leader)
