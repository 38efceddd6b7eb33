"""The copies of a set piece's partition: what is in them, what a consumer gets, and whether that is right."""

from __future__ import annotations

from typing import Any

from strandline.node.partition.batch import StoredBatch
from tests.compaction.logs import Written
from tests.simulation.report import Finding
from tests.simulation.whole.compaction.history import Bounds, History
from tests.simulation.whole.compaction.schedules.nodes import Nodes
from tests.simulation.whole.compaction.watch import batches_in
from tests.simulation.whole.transactions.followers import Filter, batches_of


class CopiesOnNodes(Nodes):
    """What a set piece can see of its copies."""

    @property
    def history(self) -> History:
        """Everything that was written."""
        self.copies.catch_up(self.place, self.machine)
        return self.copies.history(self.place)

    def clean_end(self, node: int) -> int:
        manifest = self.manifest(node)
        return -1 if manifest is None else manifest.clean_end

    def log_end(self, node: int) -> int:
        manifest = self.manifest(node)
        return -1 if manifest is None else manifest.log_end

    def records(self, node: int) -> list[Written]:
        """What a node's local log has."""
        log = self.log(node)
        assert log is not None
        assert log.log is not None
        return [one for data in batches_in(log.log.view) for one in self.copies.read(data)]

    def has(self, node: int, offset: int) -> bool:
        return any(one.offset == offset for one in self.records(node))

    def level_one(self) -> list[Written]:
        """What level one has."""
        stored = self.watch.stored(self.place, list(self.machine.level_one))
        return [one for data in stored for one in self.copies.read(data)]

    def level_one_has(self, offset: int) -> bool:
        return any(one.offset == offset for one in self.level_one())

    def everywhere(self, offset: int) -> bool:
        return all(self.has(node, offset) for node in self.brokers) and self.level_one_has(offset)

    def nowhere(self, offset: int) -> bool:
        """No copy has an offset any more."""
        return not any(self.has(node, offset) for node in self.brokers) and not self.level_one_has(offset)

    def read(
        self, node: int, *, offset: int = 0, until: int | None = None, most: int = 1 << 20
    ) -> list[Written]:
        """All that a consumer of committed records gets from a leader, up to the last stable offset, or until
        it has come to a lower one."""
        found: list[Written] = []

        async def consume(position: int) -> bool:
            partition = self.partition(node)
            position, end = max(position, partition.start_offset), partition.last_stable_offset
            while position < (end if until is None else min(end, until)):
                answer = await partition.read_committed(position, end, most)
                if not answer.batches:
                    return False
                position = self.taken(answer, position, found)
            return True

        if not self.run(node, consume(offset)):
            self.expect(False, "a consumer comes to the end", f"node {node} from {offset}")
        return found

    def taken(self, answer: Any, position: int, found: list[Written]) -> int:
        """Take one answer as a client does; the offset it asks for next."""
        passing = Filter([_Row(*row) for row in answer.aborted])
        for run in answer.batches:
            data = bytes(run.data)
            if isinstance(run, StoredBatch):
                data = run.base_offset.to_bytes(8, "big") + data[8:]
            for batch, header in batches_of(data):
                if passing.passes(batch, header):
                    found += [one for one in self.copies.read(batch) if one.offset >= position]
                position = max(position, header.next_offset)
        return position

    def table(self, records: list[Written]) -> dict[bytes, bytes]:
        """The table that a consumer makes of what leaders gave it."""
        table: dict[bytes, bytes] = {}
        for one in records:
            if one.key is not None and not one.marker:
                table.pop(one.key, None)
                if one.value is not None:
                    table[one.key] = one.value
        return table

    def truth(self) -> dict[bytes, bytes]:
        """The table that was written, up to the last stable offset."""
        history, start, end = self.history, self.machine.start_offset, self.machine.last_stable_offset
        table = {}
        for key, offsets in history.by_key.items():
            newest = max((offset for offset in offsets if start <= offset < end), default=None)
            value = None if newest is None else history.records[newest].written.value
            if value is not None:
                table[key] = value
        return table

    def expect(self, holds: bool, check: str, text: str = "") -> None:
        """A finding if it does not hold, also where the ledger has as many as it takes."""
        if not holds:
            self.ledger.findings.append(Finding(check, self.world.now, f"{text} {self.describe()}"))

    def check_table(self, node: int, records: list[Written] | None = None) -> None:
        """What a consumer has from this leader, or has got by now, is what was written."""
        table, truth = self.table(self.read(node) if records is None else records), self.truth()
        wrong = {key: (table.get(key), truth.get(key)) for key in table.keys() | truth.keys()}
        wrong = {key: pair for key, pair in wrong.items() if pair[0] != pair[1]}
        self.expect(not wrong, "one table", f"node {node} gives {wrong} (is, should be).")

    def check_copies(self) -> None:
        """Each local log that is up, and level one, by brute force against all that was written."""
        newest = self.machine
        self.copies.catch_up(self.place, newest)
        self.watch.check_level_one("at the end", self.place, newest, list(newest.level_one))
        ripe = newest.removals
        for node in self.brokers:
            log = self.log(node)
            if log is None or log.log is None or not log.log.manifest.segments:
                continue
            manifest = log.log.manifest
            bounds = Bounds(
                max(manifest.start_offset, newest.start_offset), manifest.log_end, manifest.clean_end,
                manifest.log_end, ripe.ripe_tombstones, ripe.ripe_markers, ripe.level_one_settled,
                newest.last_stable_offset,
            )  # fmt: skip
            self.copies.check(f"node {node}", self.place, [*batches_in(log.log.view)], bounds)


class _Row:
    """A row of aborted transactions, as Fetch gives it."""

    def __init__(self, producer_id: int, first_offset: int, last_offset: int) -> None:
        self.producer_id, self.first_offset, self.last_offset = producer_id, first_offset, last_offset
