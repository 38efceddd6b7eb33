"""One seed from beginning to end: start, a drill, faults under load, healing, and the last checks."""

from __future__ import annotations

import time

from tests.histories.linearizability import Undecided, explain, is_linearizable
from tests.simulation.log.clients import Clients
from tests.simulation.log.cluster import Cluster
from tests.simulation.log.drills import Drills
from tests.simulation.log.endurance import Endurance
from tests.simulation.log.faults import LogFaults
from tests.simulation.log.liveness import SERVES_SECONDS, check_history, check_quiet, check_served
from tests.simulation.log.operator import Operator
from tests.simulation.log.plan import Plan, plan_of
from tests.simulation.report import Finding, Report
from tests.simulation.world import World

FIRST_LEADERS_SECONDS = 4.0
SETTLES_SECONDS = 12.0
AFTERMATH_SECONDS = 1.6
"""Until the latest message has arrived, and clocks that were put back show again what they did."""
FIGURES = (
    "applied", "unknown", "rejected", "read", "elections", "snapshots installed", "membership changes",
)  # fmt: skip
"""Outcomes of a run, in the order in which they are told."""


class Scenario:
    """One run. The phases stop at the first finding."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.cluster = Cluster(world, plan)
        self.clients = Clients(self.cluster)
        self.operator = Operator(self.cluster)
        self.faults = LogFaults(self.cluster, self.clients, self.operator)

    def run(self) -> None:
        for phase in (self._begin, self._drill, self._suffer, self._recover, self._endure, self._look_back):
            if not self.cluster.ledger.findings:
                self.world.record(0, f"phase: {phase.__name__}")
                phase()

    def _begin(self) -> None:
        if self.world.rng("begin").random() < 0.3:
            self.world.network.set_all(duplication=0.5)
        for node in self.plan.nodes:
            self.cluster.start(node)
        self._until("first leaders", self.cluster.all_led, FIRST_LEADERS_SECONDS)
        self.world.network.set_all(duplication=0.0)

    def _drill(self) -> None:
        Drills(self.cluster, self.clients).run(self.plan.drill)

    def _suffer(self) -> None:
        self.clients.start()
        self.faults.start()
        self.world.run(self.world.now + self.plan.fault_seconds)
        self.clients.stop()

    def _recover(self) -> None:
        self.faults.heal()
        self.world.run(self.world.now + AFTERMATH_SECONDS)
        self._until("serves again", self.cluster.all_led, SERVES_SECONDS)
        self._until("repairs end", self.operator.settle, SETTLES_SECONDS)
        if not self.cluster.ledger.findings:
            check_served(self.cluster, self.clients)
        if not self.cluster.ledger.findings:
            check_quiet(self.cluster)

    def _endure(self) -> None:
        if self.plan.endurance is None:
            return
        kind, seconds = self.plan.endurance
        self.faults.counts[kind] += 1
        Endurance(self.cluster, self.clients).run(kind, seconds)
        self._until("serves again", self.cluster.all_led, SERVES_SECONDS)
        if not self.cluster.ledger.findings:
            check_served(self.cluster, self.clients)

    def _until(self, check: str, done: object, seconds: float) -> None:
        ledger = self.cluster.ledger
        assert callable(done)
        if not self.world.run_until(lambda: bool(ledger.findings) or done(), timeout=seconds):
            self.cluster.ledger.broken(check, f"not within {seconds:.0f} s: {self.cluster.describe()}")

    def _look_back(self) -> None:
        check_history(self.cluster, self.clients)
        self.clients.place_unknown()
        for (group, key), history in self.clients.histories.items():
            try:
                legal = is_linearizable(history)
            except Undecided as error:
                self.cluster.ledger.broken("linearizability", f"undecided: {error}")
                continue
            if not legal:
                self.cluster.ledger.broken(
                    "linearizability", f"group {group}, register {key}:\n{explain(history)}"
                )


def run_seed(seed: int, *, tracing: bool = False) -> Report:
    """Simulate one seed."""
    began = time.process_time()
    report = Report(seed)
    with World(seed, tracing=tracing) as world:
        scenario = Scenario(world, plan_of(seed))
        scenario.run()
        ledger = scenario.cluster.ledger
        report.findings = list(ledger.findings)
        report.findings += [
            Finding("exception", failure.time, str(failure)) for failure in world.failures[:5]
        ]
        report.faults = scenario.faults.counts
        report.outcomes = scenario.clients.outcomes
        report.outcomes["elections"] = ledger.elections
        report.outcomes["snapshots installed"] = ledger.snapshots_installed
        report.outcomes["membership changes"] = scenario.operator.applied
        report.virtual = world.now
        report.digest = world.digest()
        report.trace = world.trace or []
    report.seconds = time.process_time() - began
    return report
