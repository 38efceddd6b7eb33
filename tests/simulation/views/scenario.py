"""One seed: a schedule among random faults, then quiet, and the rules that hold at every moment."""

from __future__ import annotations

import time

from tests.simulation.report import Finding, Report
from tests.simulation.views.cluster import Cluster
from tests.simulation.views.schedules import SCHEDULES
from tests.simulation.views.stage import Stage, Stuck
from tests.simulation.world import World

FIGURES = ("transactions", "changes", "compared", "cutovers")
"""Outcomes of a run, in the order in which they are told."""


def schedule_of(seed: int) -> str:
    """The schedule that a seed plays."""
    return [*SCHEDULES][seed % len(SCHEDULES)]


def run_seed(seed: int, *, tracing: bool = False, schedule: str = "") -> Report:
    """Simulate one seed; of the schedule that is its own, or another."""
    began = time.process_time()
    report = Report(seed)
    with World(seed, tracing=tracing) as world:
        cluster = Cluster(world)
        stage = Stage(cluster)
        try:
            SCHEDULES[schedule or schedule_of(seed)](stage)
            if not cluster.findings:
                stage.settle()
        except Stuck as stuck:
            cluster.broken("comes to its end", str(stuck))
        for process in [*cluster.processes]:
            process.kill()
        stage.close()
        report.findings = cluster.findings
        report.findings += [Finding("exception", one.time, str(one)) for one in world.failures[:5]]
        report.faults = cluster.faults
        report.outcomes = cluster.outcomes
        report.virtual = world.now
        report.digest = world.digest()
        report.trace = world.trace or []
    report.seconds = time.process_time() - began
    return report
