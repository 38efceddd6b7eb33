"""One seed of compacted topics, from start to end: the phases of any seed, and one table in every copy."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final
from unittest.mock import patch

from strandline.node.compaction import (
    compaction_upkeep,
    distribution,
    log_problems,
    pace,
    publication,
    publisher,
    removal_leader,
    reports,
)
from strandline.node.compaction.log_folders import log_folder
from strandline.statemachine.partition.partition import PartitionStateMachine
from tests.compaction.logs import Written
from tests.simulation.all_of import all_of
from tests.simulation.report import Report
from tests.simulation.whole.checks import check_documents, check_epochs, check_topics
from tests.simulation.whole.client import Client
from tests.simulation.whole.compaction.clients import BEGINS_ANEW, KeyedProducer, KeyedWriter, TableReader
from tests.simulation.whole.compaction.endings import check_batches, check_endings
from tests.simulation.whole.compaction.faults import FOLDER, LogFaults
from tests.simulation.whole.compaction.history import Copies
from tests.simulation.whole.compaction.operator import TableOperator
from tests.simulation.whole.compaction.plan import compaction_plan
from tests.simulation.whole.compaction.watch import LogWatch, batches_in
from tests.simulation.whole.faults import WholeFaults
from tests.simulation.whole.objects import Place
from tests.simulation.whole.operator import Operator
from tests.simulation.whole.plan import Plan
from tests.simulation.whole.scenario import (
    AFTERMATH_SECONDS,
    CALM_SECONDS,
    DRAINS_SECONDS,
    FINISHES_SECONDS,
    READER_VERSION,
    SERVES_SECONDS,
    Scenario,
    simulated,
)
from tests.simulation.whole.service import Service
from tests.simulation.whole.sim_broker import SimBroker
from tests.simulation.whole.transactions.checks import still_open, transactions_left_over
from tests.simulation.whole.transactions.faults import TransactionFaults
from tests.simulation.whole.transactions.journal import Journal
from tests.simulation.whole.transactions.load import Load
from tests.simulation.whole.transactions.scenario import ENDS_SECONDS, SPARE_SECONDS
from tests.simulation.world import World

COMPACTS_SECONDS: Final = 60.0
"""Until all logs have all there is, all copies are clean, and what is deleted is gone.

A log that lost everything is filled by a segment at a time and, where the dirty ratio is 0, cleaned whole
after each: some 20 offsets a second in a plan with small segments.
"""
FIGURES = (
    "batches", "acknowledged", "consumed", "entries", "terms", "documents", "reconciled", "log changes",
    "publications", "partial rounds", "removals", "ripe", "start moves", "policies set", "moved", "resets",
    "dropped records", "committed", "aborted", "unknown",
)  # fmt: skip
"""Outcomes of a run, in the order in which they are told."""


class CompactionScenario(Scenario):
    """One run. The phases stop at the first finding."""

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, plan)
        self.copies = Copies(self.cluster.store, self.ledger.broken)
        self.watch = LogWatch(self.cluster, self.copies)
        self.settings = self.watch.settings
        self.ledger.retention.limit_ms = self.settings.shortest_retention
        self.watch.start()
        self.readers: list[TableReader] = []
        self.journal = Journal(lambda: world.now)
        self.writers: list[KeyedWriter] = []
        self.aimed: list[LogFaults | TransactionFaults] = []

    @property
    def clients(self) -> list[Client]:
        return [*super().clients, *self.writers]

    def _operate(self) -> Operator:
        return TableOperator(self.cluster, self.directory, self._machine())

    def _suffer(self) -> None:
        plan, cluster, directory = self.plan, self.cluster, self.directory
        for number, topic in enumerate(directory.topics):
            # Only the first is never deleted, if any is.
            topic.stable = number == 0 or "recreate" not in plan.admin
        for number in range(plan.idempotent + plan.plain):
            idempotent = number < plan.idempotent
            name = f"{'p' if idempotent else 'q'}{number}"
            self.producers.append(
                KeyedProducer(cluster, directory, name, self._machine(), idempotent=idempotent)
            )
        for number in range(plan.consumers):
            # One of them reads all there is again and again: what comes back meets it.
            self._read(f"c{number}", anew=BEGINS_ANEW if number else 0.0)
        of_logs = LogFaults(cluster, self.watch)
        self.aimed.append(of_logs)
        if plan.load is not None:
            self._transact(plan.load)
            self.aimed.append(TransactionFaults(cluster, self.writers))
        kinds = {name: kind for aimed in self.aimed for name, kind in aimed.kinds.items()}
        self.faults = WholeFaults(cluster, self.clients, kinds)
        of_logs.start()
        self._go_wrong(self.faults)

    def _transact(self, load: Load) -> None:
        for number in range(load.writers):
            for twin, idle in (("a", 0.1), ("b", SPARE_SECONDS)):
                writer = KeyedWriter(
                    self.cluster, self.directory, f"w{number}{twin}", self._machine(), self.journal,
                    f"w{number}", idle=idle,
                )  # fmt: skip
                self.writers.append(writer)

    def _heal(self) -> None:
        super()._heal()
        self.journal.calm = True
        for aimed in self.aimed:
            aimed.heal()

    def _read(self, name: str, version: int = 0, *, anew: float = 0.0) -> TableReader:
        machine = self._machine()
        reader = TableReader(self.cluster, self.directory, name, machine, self.copies, version, anew=anew)
        self.readers.append(reader)
        self.consumers.append(reader)
        return reader

    def _recover(self) -> None:
        assert self.operator is not None
        self._heal()
        self.operator.stop()
        self.world.run(self.world.now + AFTERMATH_SECONDS)
        for client in (*self.producers, *self.writers):
            client.stop()
        self._folders_replaced()
        self._until("the operator ends", self._done([self.operator]), FINISHES_SECONDS)
        self._until("in service again", Service(self.cluster).missing, SERVES_SECONDS)
        self._until("producers end", self._done([*self.producers, *self.writers]), FINISHES_SECONDS)
        self._until("transactions end", lambda: still_open(self.cluster, ""), ENDS_SECONDS)
        if self._failed():
            return
        for consumer in self.consumers:
            consumer.hurry()
        self._until("level zero drains, nothing is left over", self._drained, DRAINS_SECONDS)
        self._until("logs that are not needed go", self._left_behind, COMPACTS_SECONDS)
        self._until("logs are filled", self._not_filled, COMPACTS_SECONDS)
        self._until("removal comes to the end", self._not_removed, COMPACTS_SECONDS)
        if self._failed():
            return
        self._read("reader", READER_VERSION).hurry()
        self._until("in service still", Service(self.cluster).missing, SERVES_SECONDS)
        self._until("consumers catch up", self._caught_up, FINISHES_SECONDS)
        for client in self.clients:
            client.stop()
        self._until("clients end", self._done(self.clients), FINISHES_SECONDS)
        for client in self.clients:
            client.close()
        self._until("nothing is left", self._nothing_left, CALM_SECONDS)

    def _left_behind(self) -> str | None:
        """Files of local logs of topics that are gone, or are not compacted, or of replicas that left."""
        places = self.ledger.objects.places().items()
        for broker in self.cluster.brokers.values():
            folders = tuple(
                log_folder("/data", place.topic_id, place.partition)
                for group, place in places
                if group in broker.host.groups and self.settings.compacted(place.topic_id)
            )
            for name in broker.sim.disk._names:
                if name.startswith(FOLDER) and not name.startswith(folders):
                    return f"node {broker.node_id} has {name}"
        return None

    def _members(self, group: int) -> list[SimBroker]:
        """The brokers with a replica of it."""
        return [broker for broker in self.cluster.brokers.values() if group in broker.host.groups]

    def _not_filled(self) -> str | None:
        for group, place in self.ledger.objects.places().items():
            machine = self.ledger.objects.newest(group)
            assert machine is not None
            for broker in self._members(group):
                log = broker.compaction.log_of(group)
                if not self.settings.compacted(place.topic_id):
                    continue
                it = None if log is None else log.log
                if it is None or it.manifest.log_end != machine.high_watermark:
                    told = None if it is None else it.manifest
                    why = None if log is None else (log.problems.first, log.reset_for)
                    return f"node {broker.node_id}: {place} ends at {machine.high_watermark}, {told} {why}"
                if any(one.end_offset <= machine.start_offset for one in it.manifest.segments[:1]):
                    return f"node {broker.node_id}: {place} begins at {machine.start_offset}, {it.manifest}"
        return None

    def _not_removed(self) -> str | None:
        """Every log is clean as far as its topic asks for, and removal has come to the least clean copy."""
        for group, place in self.ledger.objects.places().items():
            machine = self.ledger.objects.newest(group)
            assert machine is not None
            if not self.settings.compacted(place.topic_id):
                continue
            ends = []
            for broker in self._members(group):
                log = broker.compaction.log_of(group)
                told = None if log is None else log.ends(log.replica.machine)
                if told is None:
                    return f"node {broker.node_id} reports nothing of {place}"
                ends.append(told.mcco)
            removals = machine.removals
            if removals.mtro < min(ends):
                return (
                    f"MTRO of {place} is {removals.mtro}, its logs are clean to {ends}, {removals.fields()}"
                )
            if removals.waiting:
                return f"{place}: {removals.waiting} are not ripe"
        return None

    def _nothing_left(self) -> str | None:
        of_these = (transactions_left_over(broker) for broker in self.cluster.brokers.values())
        return super()._nothing_left() or next((why for why in of_these if why), None)

    def _look_back(self) -> None:
        check_topics(self.cluster, self.directory)
        self.totals["documents"] = check_documents(self.cluster)
        check_epochs(self.cluster)
        if self.wiped is not None:
            self.wiped.check()
        sent = [one for one in self.ledger.sent.values() if not self.directory.gone(one.place)]
        check_batches(self.copies, sent, self.ledger.broken)
        check_endings(self.copies, self.journal, self.ledger.broken)
        self._check_tables()

    def _check_tables(self) -> None:
        """Every local log, level one and a reader have the table of all that was written."""
        for group, place in self.ledger.objects.places().items():
            history, machine = self.copies.history(place), self.ledger.objects.newest(group)
            assert machine is not None
            wanted = history.table(machine.start_offset)
            self.totals["written records"] += len(history.records)
            for broker in self._members(group):
                log = broker.compaction.log_of(group)
                if not self.settings.compacted(place.topic_id):
                    continue
                assert log is not None
                assert log.log is not None
                if self.watch.is_rotten(broker.node_id, log):
                    continue
                found = [one for data in batches_in(log.log.view) for one in self.copies.read(data)]
                self.totals["dropped records"] += len(history.records) - len(found)
                self._check_table(f"node {broker.node_id}", place, _table(found, machine), wanted)
            stored = self.watch.stored(place, list(machine.level_one))
            found = [one for data in stored for one in self.copies.read(data)]
            committed = [one for one in found if history.records[one.offset].fate]
            self._check_table("level one", place, _table(committed, machine), wanted)
            self._check_readers(place, machine, {key: one.value for key, one in wanted.items()})

    def _check_readers(
        self, place: Place, machine: PartitionStateMachine, wanted: dict[bytes, bytes | None]
    ) -> None:
        # One that is slower than tombstones wait may have a value and miss its deletion, as with Kafka.
        late = self.copies.history(place).deleted(machine.removals.ripe_tombstones, machine.start_offset)
        for reader in self.readers:
            if reader.by_name and not self.directory.topic(place).stable:
                continue
            forgiven = set[bytes]() if reader is self.readers[-1] else late
            table = reader.table(place)
            if {key: value for key, value in table.items() if key not in forgiven} != wanted:
                self.ledger.broken("one table", f"{reader.name} has {table} of {place}, not {wanted}")

    def _check_table(
        self, who: str, place: Place, table: dict[bytes, Written], wanted: dict[bytes, Written]
    ) -> None:
        if table != wanted:
            self.ledger.broken("one table", f"{who} has {table} of {place}, not {wanted}")

    def tally(self) -> None:
        self._tally(sum(reader.records for reader in self.readers))
        self.totals.update(self.watch.counts)
        self.totals.update(self.journal.counts)
        if self.operator is not None:
            self.totals["policies set"] = self.operator.finished.get("policy", 0)
            self.totals["moved"] = self.operator.finished.get("moved", 0)
        for broker in self.cluster.brokers.values():
            self.totals["resets"] += sum(broker.compaction.measures.resets.values())


def _table(found: list[Written], machine: PartitionStateMachine) -> dict[bytes, Written]:
    there = [one for one in found if not one.marker and one.offset >= machine.start_offset]
    newest = {one.key: one for one in there if one.key is not None}
    return {key: one for key, one in newest.items() if one.value is not None}


def compacts_often() -> AbstractContextManager[None]:
    """Periods of compaction, shortened as those of `paced` are."""
    periods = (
        (compaction_upkeep, "LOOK_SECONDS", 0.1),
        (compaction_upkeep, "AGAIN_SECONDS", 0.2),
        (pace, "MAX_REST_SECONDS", 0.2),
        (reports, "LOOK_SECONDS", 0.1),
        (reports, "TELL_ALL_SECONDS", 1.0),
        (removal_leader, "LOOK_SECONDS", 0.1),
        (distribution, "DELAY_SECONDS", 0.2),
        (distribution, "LEAST_SPACING_SECONDS", 0.1),
        (publisher, "LEAST_HELD_SECONDS", 0.1),
        (publication, "FIRST_RETRY_SECONDS", 0.2),
        (publisher, "MOST_RETRY_SECONDS", 1.0),
        (log_problems, "FIRST_RETRY_SECONDS", 0.1),
        (log_problems, "MOST_RETRY_SECONDS", 1.0),
    )
    return all_of(patch.object(module, name, seconds) for module, name, seconds in periods)


def run_seed(seed: int, *, tracing: bool = False) -> Report:
    """Simulate one seed of compacted topics."""
    with compacts_often():
        return simulated(seed, compaction_plan(seed), CompactionScenario, tracing=tracing)
