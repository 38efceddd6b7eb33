"""One seed of transactions and groups, from start to end: the phases of any seed, with these clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from strandline.statemachine.transactions import transaction_state, transactions
from tests.histories.anomalies import anomalies
from tests.histories.history import Ending, Place
from tests.simulation.report import Report
from tests.simulation.whole.checks import (
    check_contents,
    check_documents,
    check_epochs,
    check_topics,
    contents,
)
from tests.simulation.whole.client import Client
from tests.simulation.whole.faults import WholeFaults
from tests.simulation.whole.plan import Plan
from tests.simulation.whole.producers import Producer
from tests.simulation.whole.regrowth import Regrown
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
from tests.simulation.whole.transactions.checks import (
    check_offsets,
    not_consumed,
    still_open,
    transactions_left_over,
)
from tests.simulation.whole.transactions.faults import TransactionFaults
from tests.simulation.whole.transactions.followers import Follower
from tests.simulation.whole.transactions.journal import Journal
from tests.simulation.whole.transactions.plan import transactional_plan
from tests.simulation.whole.transactions.regrown import RegrownTransactions
from tests.simulation.whole.transactions.workers import INPUT, Worker
from tests.simulation.whole.transactions.writers import Transacting, Writer
from tests.simulation.world import World

ENDS_SECONDS = 30.0
"""Until everything is aborted that its client does not end: the longest timeout, and looks for it."""
CONSUMED_SECONDS = 45.0
FIGURES = (
    "committed", "aborted", "unknown", "copied", "generations joined", "ids used up", "batches",
    "acknowledged", "consumed", "entries", "terms", "documents", "reconciled",
)  # fmt: skip
"""Outcomes of a run, in the order in which they are told."""
SPARE_SECONDS = 2.0
"""Mean pause between two incarnations of a writer that may find its transactional id in use."""


class TransactionScenario(Scenario):
    """One run. The phases stop at the first finding."""

    needed_topics = 3

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, plan)
        self.journal = Journal(lambda: world.now)
        self.writers: list[Writer] = []
        self.workers: list[Worker] = []
        self.followers: list[Follower] = []
        self.aimed: TransactionFaults | None = None
        self.regrown: RegrownTransactions | None = None

    @property
    def clients(self) -> list[Client]:
        assert self.operator is not None
        return [*self.producers, *self.writers, *self.workers, *self.followers, self.operator]

    def _suffer(self) -> None:
        for topic in self.directory.topics:
            topic.stable = True  # none is ever deleted
        self.faults = self._clients_and_faults()
        self._go_wrong(self.faults, _coordinates)

    def _clients_and_faults(self, life: str = "") -> WholeFaults:
        """Begin the clients, each with this at the end of its name, and make the faults that they meet."""
        load, cluster, directory = self.plan.load, self.cluster, self.directory
        assert load is not None
        for number in range(load.writers):
            for twin, idle in (("a", 0.1), ("b", SPARE_SECONDS)):
                name = f"w{number}{twin}{life}"
                self.writers.append(
                    Writer(cluster, directory, name, self._machine(), self.journal, f"w{number}", idle=idle)
                )
        for number in range(self.plan.idempotent):
            name = f"p{number}{life}"
            self.producers.append(Producer(cluster, directory, name, self._machine(), idempotent=True))
        for number in range(load.workers):
            name = f"k{number}{life}"
            self.workers.append(Worker(cluster, directory, name, self._machine(), self.journal))
        for number in range(load.followers):
            self._follow(f"f{number}{life}")
        transacting: Sequence[Transacting] = [*self.writers, *self.workers]
        self.aimed = TransactionFaults(cluster, transacting)
        return WholeFaults(cluster, self.clients, self.aimed.kinds)

    def _all_lost(self) -> None:
        self.regrown = RegrownTransactions(self.journal, self.ledger)
        assert self.aimed is not None
        self.aimed.heal()
        for client in self.clients:
            client.close()
        for clients in (self.producers, self.writers, self.workers, self.followers, self.consumers):
            clients.clear()

    def _go_on(self, regrown: Regrown) -> None:
        """No client outlives the cluster before."""

    def _faults_of_restored(self, regrown: Regrown) -> WholeFaults:
        assert self.regrown is not None
        assert self.faults is not None
        reader = self._follow("restored", READER_VERSION)
        reader.hurry()
        self._until("restored transactions end", lambda: still_open(self.cluster, ""), ENDS_SECONDS)
        self._until("restored transactions are read", self._caught_up, FINISHES_SECONDS)
        if not self._failed():
            self.regrown.judge(reader, regrown.taken, self.faults.counts)
        if self._failed():
            return self.faults  # no client is begun in a world that has stopped
        return self._clients_and_faults("+")

    def _heal(self) -> None:
        super()._heal()
        if self.aimed is not None:
            self.aimed.heal()

    def _follow(self, name: str, version: int = 0) -> Follower:
        follower = Follower(self.cluster, self.directory, name, self._machine(), self.journal, version)
        self.followers.append(follower)
        self.consumers.append(follower)
        return follower

    def _recover(self) -> None:
        assert self.operator is not None
        self._heal()
        self.journal.calm = True
        self.operator.stop()
        self.world.run(self.world.now + AFTERMATH_SECONDS)
        for writer in (*self.writers, *self.producers):
            writer.stop()
        self._folders_replaced()
        self._until("the operator ends", self._done([self.operator]), FINISHES_SECONDS)
        self._until("in service again", Service(self.cluster).missing, SERVES_SECONDS)
        self._until("writers end", self._done([*self.writers, *self.producers]), FINISHES_SECONDS)
        if self._failed():
            return
        for consumer in self.consumers:
            consumer.hurry()
        self._until("transactions end", lambda: still_open(self.cluster, "w"), ENDS_SECONDS)
        self._until("followers catch up", self._caught_up, FINISHES_SECONDS)
        if self.workers:
            self._until("all is consumed", self._consumed, CONSUMED_SECONDS)
        for worker in self.workers:
            worker.stop()
        self._until("workers end", self._done(self.workers), FINISHES_SECONDS)
        self._until("all transactions end", lambda: still_open(self.cluster, ""), ENDS_SECONDS)
        self._until("level zero drains, nothing is left over", self._drained, DRAINS_SECONDS)
        if self._failed():
            return
        self._follow("reader", READER_VERSION).hurry()
        self._until("in service still", Service(self.cluster).missing, SERVES_SECONDS)
        self._until("consumers catch up", self._caught_up, FINISHES_SECONDS)
        for client in self.clients:
            client.stop()
        self._until("clients end", self._done(self.clients), FINISHES_SECONDS)
        for client in self.clients:
            client.close()
        self._until("nothing is left", self._nothing_left, CALM_SECONDS)
        if self.points is not None:
            self._until("tail points", self.points.behind, CALM_SECONDS)

    def _consumed(self) -> str | None:
        return not_consumed(self.cluster, self.directory.topics[INPUT], self.followers[0])

    def _nothing_left(self) -> str | None:
        of_these = (transactions_left_over(broker) for broker in self.cluster.brokers.values())
        return super()._nothing_left() or next((why for why in of_these if why), None)

    def _look_back(self) -> None:
        check_topics(self.cluster, self.directory)
        found = contents(self.cluster)
        check_contents(self.ledger, found, self.producers, self.directory)
        self.totals["documents"] = check_documents(self.cluster)
        check_epochs(self.cluster)
        check_offsets(self.cluster)
        if self.wiped is not None:
            self.wiped.check()
        reader = self.followers[-1]
        history = self.journal.history
        history.committed = reader.found
        history.followed = [follower.name for follower in self.followers]
        if self.workers:
            topic = self.directory.topics[INPUT]
            places = [Place(topic.name, number) for number in range(topic.partitions)]
            history.inputs = [read.value for place in places for read in reader.found.get(place, ())]
        if self.points is not None:
            self.points.judge(history)
        for kind, text in anomalies(history):
            self.ledger.broken(kind, text)
        self.totals["records"] = sum(
            batch.records for content in found.values() for _, batch in content.batches
        )

    def tally(self) -> None:
        self.totals.update(self.journal.counts)
        self._tally(sum(len(reads) for one in self.followers for reads in one.found.values()))
        self.totals["copied"] = sum(
            len(one.consumed) for one in self.journal.history.transactions if one.ending is Ending.COMMITTED
        )


def _coordinates(broker: SimBroker) -> bool:
    """Whether a node leads a coordinator of groups or transactions."""
    return any(replica.leads for replica in broker.coordinators)


@contextmanager
def _epochs(plan: Plan) -> Iterator[None]:
    """As many epochs for a producer id as the plan says: nobody waits for 32,767."""
    assert plan.load is not None
    last = plan.load.last_epoch
    with (
        patch.object(transactions, "LAST_EPOCH", last),
        patch.object(transaction_state, "LAST_EPOCH", last),
        patch.object(transaction_state, "LAST_CLIENT_EPOCH", last - 1),
    ):
        yield


def run_seed(seed: int, *, tracing: bool = False) -> Report:
    """Simulate one seed of transactions."""
    plan = transactional_plan(seed)
    with _epochs(plan):
        return simulated(seed, plan, TransactionScenario, tracing=tracing)
