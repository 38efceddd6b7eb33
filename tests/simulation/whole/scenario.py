"""One seed of the whole node, from start to end: faults under load, healing, and the last checks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from strandline.node.objectstore.retries import RetryingStore
from strandline.statemachine.internal_topics import INTERNAL_TOPICS
from tests.simulation.loop import DEAD
from tests.simulation.report import Finding, Report
from tests.simulation.whole.access import Access
from tests.simulation.whole.changing import Changing
from tests.simulation.whole.checks import (
    check_contents,
    check_documents,
    check_epochs,
    check_reader,
    check_topics,
    contents,
    left_over,
    not_drained,
)
from tests.simulation.whole.client import Client, Directory
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.consumers import Consumer
from tests.simulation.whole.faults import WholeFaults
from tests.simulation.whole.logins import Logins, counted_nonces
from tests.simulation.whole.lost_cluster import LostCluster
from tests.simulation.whole.member_rules import watched_members
from tests.simulation.whole.membership import ENDS_SECONDS, Membership
from tests.simulation.whole.objects import Place
from tests.simulation.whole.operator import Operator
from tests.simulation.whole.pace import paced
from tests.simulation.whole.plan import Plan
from tests.simulation.whole.producers import Producer
from tests.simulation.whole.regrowth import Regrown, Regrowth
from tests.simulation.whole.service import Service
from tests.simulation.whole.sim_broker import SimBroker
from tests.simulation.whole.tail_points import PointJudge
from tests.simulation.whole.tails import TailReader
from tests.simulation.whole.themes import plan_of
from tests.simulation.whole.wiped_folders import LET_IN_SECONDS, WipedFolders
from tests.simulation.world import World

STARTS_SECONDS = 20.0
"""For nodes to register and the first topics to be there: a founder needs several answers of the store in a
row, and the slowest store answers within 0.4 s where a node waits for 0.3 s."""
AFTERMATH_SECONDS = 1.6
"""Until the latest message has arrived, and clocks that were put back show again what they did."""
SERVES_SECONDS = 20.0
ENDURES_THINK_SECONDS = 3.0
FINISHES_SECONDS = 20.0
CALM_SECONDS = 12.0
DRAINS_SECONDS = 40.0
"""Until leases of checkpoints have ended, and epochs have passed that no partition will accept any more."""
POINT_SECONDS = 6.0
"""Under faults, for a first tail point."""
AFTER_RESTORE_SECONDS = 3.0
"""For faults in the restored cluster."""
ACCESS_SECONDS = 4.0
"""Without faults, in which access is changed and asked for."""
CLIENTS_FROM = 101
READER_VERSION = 13
FIGURES = (
    "batches", "acknowledged", "consumed", "entries", "terms", "slides", "restaged", "refused epochs",
    "topics", "documents", "reconciled", "merged", "collected", "level-one deleted", "snapshots deleted",
    "expired", "records deleted",
)  # fmt: skip
"""Outcomes of a run, in the order in which they are told."""


class Scenario:
    """One run. The phases stop at the first finding."""

    needed_topics = 1
    """So many of the first topics are in a point before all folders are lost."""

    def __init__(self, world: World, plan: Plan) -> None:
        world.network.connect_timeout = 1.0
        world.network.early_ports = not plan.acls
        self.world = world
        self.plan = plan
        self.cluster = WholeCluster(world, plan)
        self.ledger = self.cluster.ledger
        self.directory = Directory()
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self.operator: Operator | None = None
        self.changing: list[Changing[Any]] = []
        self.faults: WholeFaults | None = None
        self.wiped: WipedFolders | None = None
        self.membership: Membership | None = None
        self.tails = TailReader(self.cluster) if plan.tails else None
        self.points = PointJudge(self.cluster) if plan.tails else None
        self.totals: Counter[str] = Counter()
        self.cluster.on_crash = self._count
        self._machines = CLIENTS_FROM

    def run(self) -> None:
        ending = [self._endure, self._recover, self._look_back]
        if self.plan.lost_folders == "all":
            ending = [self._lose_all]
        if self.plan.lost_folders == "restored":
            ending = [self._restore, *ending]
        for phase in (self._begin, self._suffer, *ending):
            if not self._failed():
                self.world.record(0, f"phase: {phase.__name__}")
                phase()
        for broker in self.cluster.brokers.values():
            self._count(broker)

    def _failed(self) -> bool:
        return bool(self.ledger.findings or self.world.failures)

    def _machine(self) -> int:
        self._machines += 1
        return self._machines

    @property
    def clients(self) -> list[Client]:
        assert self.operator is not None
        return [*self.producers, *self.consumers, self.operator, *self.changing]

    def _begin(self) -> None:
        for node in self.cluster.founders:
            self.cluster.start(node)
        if self.tails is not None:
            self.tails.start()
        if self.points is not None:
            self.points.start()
        self.operator = operator = self._operate()
        self._until("first topics", lambda: None if operator.ready else "not ready", STARTS_SECONDS)

    def _operate(self) -> Operator:
        return Operator(self.cluster, self.directory, self._machine())

    def _suffer(self) -> None:
        plan = self.plan
        for number in range(plan.idempotent + plan.plain):
            idempotent = number < plan.idempotent
            name = f"{'p' if idempotent else 'q'}{number}"
            self.producers.append(
                Producer(self.cluster, self.directory, name, self._machine(), idempotent=idempotent)
            )
        for number in range(plan.consumers):
            self.consumers.append(Consumer(self.cluster, self.directory, f"c{number}", self._machine()))
        if plan.acls:
            for kind in (Access, Logins):
                self.changing.append(kind(self.cluster, self.directory, self._machine()))
        self.faults = WholeFaults(self.cluster, self.clients)
        self._go_wrong(self.faults)

    def _go_wrong(
        self, faults: WholeFaults, preferred: Callable[[SimBroker], bool] = lambda broker: False
    ) -> None:
        """Let time pass with the plan's faults; `preferred` as for WipedFolders."""
        faults.start()
        if self.plan.lost_folders == "one":
            self.wiped = WipedFolders(self.cluster, faults.counts, preferred)
            self.wiped.start()
        if self.plan.joining:
            self.membership = Membership(self.cluster, faults.counts, self.wiped)
            self.membership.start()
        self.world.run(self.world.now + self.plan.fault_seconds)

    def _heal(self) -> None:
        """End what goes wrong; folders that are wiped are still made good."""
        assert self.faults is not None
        if self.wiped is not None:
            self.wiped.heal()
        if self.membership is not None:
            self.membership.heal()
        self.faults.heal()

    def _folders_replaced(self) -> None:
        if self.wiped is not None:
            self._until("wiped folders are replaced", self.wiped.missing, LET_IN_SECONDS)
        if self.membership is not None:
            self._until("members are as they are to be", self.membership.missing, ENDS_SECONDS)

    def _endure(self) -> None:
        """Something lasts for minutes, with clients that have little to do; `_recover` ends it."""
        if self.plan.full_disks is not None:
            self._endure_full_disks(*self.plan.full_disks)
        elif self.membership is not None and self.plan.upheaval and self.plan.upheaval.away_seconds:
            self._endure_absence(self.membership)

    def _endure_absence(self, membership: Membership) -> None:
        """The last joiner is away amid its joining."""
        assert self.operator is not None
        self._heal()
        self.operator.stop()
        self.world.run(self.world.now + AFTERMATH_SECONDS)
        self.cluster.plan = replace(self.cluster.plan, think_seconds=ENDURES_THINK_SECONDS)
        membership.be_away()
        self.cluster.plan = replace(self.cluster.plan, think_seconds=self.plan.think_seconds)

    def _endure_full_disks(self, which: str, seconds: float) -> None:
        assert self.faults is not None
        assert self.operator is not None
        self._heal()
        self.operator.stop()
        self.world.run(self.world.now + AFTERMATH_SECONDS)
        self._until("in service again", Service(self.cluster).missing, SERVES_SECONDS)
        rng = self.world.rng("full disks")
        nodes = self.plan.nodes
        self.cluster.plan = replace(self.plan, think_seconds=ENDURES_THINK_SECONDS)
        for node in rng.sample(nodes, len(nodes) // 2 + 1 if which == "majority" else 1):
            self.world.nodes[node].disk.fill(rng.choice((0, 3000)), overwrites_count=rng.random() < 0.7)
        self.faults.counts[f"disks full for long: {which}"] += 1
        self.world.run(self.world.now + seconds)
        self.cluster.plan = self.plan

    def _lose_all(self) -> None:
        """The run ends without its cluster: clients meet no node that serves."""
        assert self.faults is not None
        self.faults.heal()
        self.faults.counts["all folders lost"] += 1
        self.world.run(self.world.now + AFTERMATH_SECONDS)
        LostCluster(self.cluster).run()

    def _restore(self) -> None:
        """All folders are lost under load, and a cluster of what the bucket holds goes on, with faults."""
        faults, points, tails, operator = self.faults, self.points, self.tails, self.operator
        assert faults is not None
        assert points is not None
        assert tails is not None
        assert operator is not None
        stable = [topic.name for topic in self.directory.topics[: self.needed_topics]]

        def lacking() -> str | None:
            return next((f"none has {name}" for name in stable if not points.has(name)), None)

        self.world.run_until(lambda: self._failed() or lacking() is None, timeout=POINT_SECONDS)
        if lacking() is not None:
            self._heal()
            self._until("tail points", lacking, CALM_SECONDS)
        if self._failed():
            return
        regrowth = Regrowth(self.cluster, self.directory, faults.counts)
        regrowth.lose()
        operator.close()
        faults.heal()
        self._all_lost()
        regrowth.settle()
        regrown = regrowth.restore()
        if regrown is None or self._failed():
            return
        tails.restored(regrown.documents)
        points.restored(regrown.documents)
        self._go_on(regrown)
        regrowth.start()
        self._until("in service after a restore", Service(self.cluster).missing, SERVES_SECONDS)
        if self._failed():
            return
        # Not before: while replicas are moved again and again, the wait may find no moment without a move.
        self.operator = Operator(self.cluster, self.directory, self._machine(), operator.names)
        self.faults = self._faults_of_restored(regrown)
        if self._failed():
            return
        self.faults.counts = faults.counts
        self.faults.start()
        self.world.run(self.world.now + AFTER_RESTORE_SECONDS)
        regrowth.judge_added()

    def _all_lost(self) -> None:
        """All nodes are gone, and clients are still there."""

    def _go_on(self, regrown: Regrown) -> None:
        """Clients learn of what is restored, before its nodes start."""
        lost = {(batch.producer, batch.place) for batch in regrown.lost}
        for producer in self.producers:
            producer.restored(lost)
        for consumer in self.consumers:
            consumer.restored(regrown.ends)

    def _faults_of_restored(self, regrown: Regrown) -> WholeFaults:
        """The faults of the cluster that was restored, and is in service."""
        return WholeFaults(self.cluster, self.clients)

    def _recover(self) -> None:
        assert self.operator is not None
        self._heal()
        self.operator.stop()
        self.world.run(self.world.now + AFTERMATH_SECONDS)
        for producer in self.producers:
            producer.stop()
        self._folders_replaced()
        self._until("the operator ends", self._done([self.operator]), FINISHES_SECONDS)
        self._until("in service again", Service(self.cluster).missing, SERVES_SECONDS)
        for one in self.changing:
            one.calm()
        self.world.run(self.world.now + (ACCESS_SECONDS if self.changing else 0.0))
        self._until("producers end", self._done(self.producers), FINISHES_SECONDS)
        if self._failed():
            return
        for consumer in self.consumers:
            consumer.hurry()
        self._until("level zero drains, nothing is left over", self._drained, DRAINS_SECONDS)
        if self._failed():
            return
        # It reads everything anew, from level one.
        self.consumers.append(
            Consumer(self.cluster, self.directory, "reader", self._machine(), READER_VERSION)
        )
        self.consumers[-1].hurry()
        self._until("in service still", Service(self.cluster).missing, SERVES_SECONDS)
        self._until("consumers catch up", self._caught_up, FINISHES_SECONDS)
        for client in self.clients:
            client.stop()
        self._until("clients end", self._done(self.clients), FINISHES_SECONDS)
        for client in self.clients:
            client.close()
        self._until("nothing is left", self._nothing_left, CALM_SECONDS)
        if self.tails is not None:
            self._until("tails", self.tails.behind, CALM_SECONDS)
        if self.points is not None:
            self._until("tail points", self.points.behind, CALM_SECONDS)

    def _drained(self) -> str | None:
        return not_drained(self.cluster, merged=self.plan.theme == "level one")

    def _done(self, clients: Sequence[Client]) -> Callable[[], str | None]:
        def look() -> str | None:
            return ", ".join(client.name for client in clients if not client.done) or None

        return look

    def _caught_up(self) -> str | None:
        for topic in self.cluster.newest().controller.machine.topics:
            if topic.name in INTERNAL_TOPICS:
                continue
            for number, partition in enumerate(topic.partitions):
                leader = self.cluster.leader(partition.group)
                replica = None if leader is None else leader.partitions.get(topic.topic_id, number)
                if replica is None:
                    return f"{topic.name}-{number} is led by nobody"
                for consumer in self.consumers:
                    known = next(one for one in self.directory.topics if one.topic_id == topic.topic_id)
                    if consumer.by_name and not known.stable:
                        continue
                    at = consumer.positions.get(Place(topic.topic_id, number), 0)
                    if at != replica.high_watermark:
                        return (
                            f"{consumer.name} is at {at} of {topic.name}-{number}, {replica.high_watermark}"
                        )
        return None

    def _nothing_left(self) -> str | None:
        return next((why for broker in self.cluster.brokers.values() if (why := left_over(broker))), None)

    def _until(self, check: str, why_not: Callable[[], str | None], seconds: float) -> None:
        """Run until `why_not` has nothing to say; what it says at the end of the time is a finding."""
        if self._failed():
            return
        if not self.world.run_until(lambda: self._failed() or why_not() is None, timeout=seconds, step=0.02):
            self.ledger.broken(check, f"not within {seconds:.0f} s: {why_not()}; {self.cluster.describe()}")

    def _look_back(self) -> None:
        check_topics(self.cluster, self.directory)
        found = contents(self.cluster)
        check_contents(self.ledger, found, self.producers, self.directory)
        check_reader(self.ledger, found, self.consumers[-1])
        self.totals["documents"] = check_documents(self.cluster)
        check_epochs(self.cluster)
        if self.wiped is not None:
            self.wiped.check()
        self.totals["records"] = sum(
            batch.records for content in found.values() for _, batch in content.batches
        )

    def tally(self) -> None:
        """Count in `totals` what was done, for the report."""
        totals, objects, retention = self.totals, self.ledger.objects, self.ledger.retention
        self._tally(sum(consumer.records for consumer in self.consumers))
        totals["merged"] = objects.merged
        totals["collected"] = objects.collected
        totals["level-one deleted"] = objects.level_one_deleted
        totals["snapshots deleted"] = objects.snapshots_deleted
        totals["expired"] = retention.expired
        totals["records deleted"] = retention.deleted_records

    def _tally(self, consumed: int) -> None:
        """What there is to count whoever the clients are."""
        totals, ledger = self.totals, self.ledger
        totals["acknowledged"] = sum(batch.acked is not None for batch in ledger.sent.values())
        totals["batches"] = len(ledger.sent)
        totals["consumed"] = consumed
        totals["entries"] = ledger.entries
        totals["terms"] = len(ledger.leaders)
        totals["topics"] = len(self.directory.topics)
        totals["reconciled"] = ledger.objects.reconciled
        totals["inline"] = ledger.inline
        for one in self.changing:
            totals.update(one.tally())
        totals["stored inline"] = ledger.objects.stored_inline
        for producer in self.producers:
            for name, count in producer.outcomes.items():
                totals[f"produce {name}"] += count
        for consumer in self.consumers:
            for name, count in consumer.outcomes.items():
                totals[f"fetch {name}"] += count
        if self.tails is not None:
            totals.update(self.tails.tally())
        if self.points is not None:
            totals["tail points"] = self.points.points

    def _count(self, broker: SimBroker) -> None:
        for partition in broker.partitions:
            counters = partition.fence.counters
            self.totals["slides"] += counters.slides
            self.totals["refused epochs"] += counters.rejections
            self.totals["restaged"] += partition.writer.restaged
        if isinstance(broker.store, RetryingStore) and (hedging := broker.store.hedging) is not None:
            self.totals["sent twice"] += sum(hedging.sent.values())
            self.totals["second answers first"] += sum(hedging.won.values())


def run_seed(seed: int, *, tracing: bool = False) -> Report:
    """Simulate one seed."""
    return simulated(seed, plan_of(seed), Scenario, tracing=tracing)


def simulated(seed: int, plan: Plan, made: Callable[[World, Plan], Scenario], *, tracing: bool) -> Report:
    """Simulate one seed by its plan."""
    began = time.process_time()
    report = Report(seed)
    with World(seed, tracing=tracing) as world, paced(plan), counted_nonces():
        scenario = made(world, plan)
        with watched_members(scenario.cluster) if plan.joining else nullcontext():
            scenario.run()
        for loop in world.loops:
            if loop.state != DEAD:
                loop.report_unretrieved()
        report.findings = list(scenario.ledger.findings)
        report.findings += [
            Finding("exception", failure.time, str(failure)) for failure in world.failures[:5]
        ]
        if scenario.faults is not None:
            report.faults = scenario.faults.counts
        scenario.tally()
        report.outcomes = scenario.totals
        report.virtual = world.now
        report.digest = world.digest()
        report.trace = world.trace or []
    report.seconds = time.process_time() - began
    return report
