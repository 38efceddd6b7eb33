"""What must happen once the faults are over: groups serve again, replicas become equal, and silence falls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from strandline.node.raft.outcome import Applied
from tests.simulation.log.clients import Clients
from tests.simulation.log.cluster import Cluster

SERVES_SECONDS = 8.0
"""Ten longest election timeouts: to come up, connect, elect, repair and catch up."""

COMMIT_SECONDS = 2.0
CONVERGES_SECONDS = 10.0
QUIET_SECONDS = 3.0


def check_served(cluster: Cluster, clients: Clients) -> None:
    """Every group elects a leader and commits a command, every command ends, all replicas become equal."""
    _expect(cluster, "serves again", cluster.all_led, SERVES_SECONDS, cluster.describe)
    for group in cluster.plan.groups:
        _probe(cluster, clients, group)
    _expect(
        cluster, "every command ends", lambda: not clients.unended(), CONVERGES_SECONDS,
        lambda: f"{len(clients.unended())} commands never ended",
    )  # fmt: skip
    for group in cluster.plan.groups:
        _expect(
            cluster, "replicas converge", partial(converged, cluster, group), CONVERGES_SECONDS,
            partial(cluster.describe_group, group),
        )  # fmt: skip


def _expect(
    cluster: Cluster, check: str, done: Callable[[], bool], seconds: float, seen: Callable[[], str]
) -> None:
    findings = cluster.ledger.findings
    if findings:
        return
    if not cluster.world.run_until(lambda: bool(findings) or done(), timeout=seconds):
        cluster.ledger.broken(check, f"not within {seconds:.0f} s: {seen()}")


def _probe(cluster: Cluster, clients: Clients, group: int) -> None:
    """One more command must be applied, however often leadership still changes hands."""
    end = cluster.world.now + SERVES_SECONDS

    def attempt() -> bool:
        command = clients.write(0, group, "probe")
        command.retries = 0
        cluster.world.run_until(lambda: command.outcome is not None, timeout=COMMIT_SECONDS)
        return isinstance(command.outcome, Applied)

    while not cluster.ledger.findings and not attempt():
        if cluster.world.now > end:
            cluster.ledger.broken(
                "serves again", f"group {group} commits nothing: {cluster.describe_group(group)}"
            )
        cluster.world.run(cluster.world.now + 0.1)


def converged(cluster: Cluster, group_id: int) -> bool:
    """Every member is up, has applied all that is committed, and has the very same state."""
    leader = cluster.leader(group_id)
    if leader is None or leader.applied != leader.journal.last:
        return False
    state = leader.machine.snapshot()
    for member in leader.configuration.members:
        replica = cluster.group(member, group_id)
        if replica is None or replica.applied != leader.applied or replica.machine.snapshot() != state:
            return False
    return True


def check_quiet(cluster: Cluster) -> None:
    """Nobody asks for anything: every group falls silent, and only the pairs' heartbeats go on."""
    _expect(
        cluster,
        "idle groups are quiet",
        lambda: _all_quiet(cluster),
        QUIET_SECONDS,
        cluster.describe,
    )
    if cluster.ledger.findings:
        return
    sent, elections = cluster.traffic.sent, cluster.ledger.elections
    cluster.world.run(cluster.world.now + 1.5)
    if cluster.traffic.sent != sent or cluster.ledger.elections != elections:
        cluster.ledger.broken(
            "idle groups are quiet",
            f"{cluster.traffic.sent - sent} messages of idle groups and"
            f" {cluster.ledger.elections - elections} elections in 1.5 s",
        )


def _all_quiet(cluster: Cluster) -> bool:
    return all(not host.active_groups() for host in cluster.hosts.values())


def check_history(cluster: Cluster, clients: Clients) -> None:
    """Nothing acknowledged is lost, nothing rejected was applied: as the final states have it."""
    for group in cluster.plan.groups:
        leader = cluster.leader(group)
        if leader is None:
            continue
        machine = leader.machine
        applied: dict[int, int] = machine.applied  # type: ignore[attr-defined]
        for command in clients.commands:
            if command.group != group:
                continue
            outcome = command.outcome
            if isinstance(outcome, Applied):
                if applied.get(command.id) != outcome.index:
                    cluster.ledger.broken("acknowledged and lost", f"command {command.id} of group {group}")
            elif clients.was_rejected(command) and command.id in applied:
                cluster.ledger.broken("rejected and applied", f"command {command.id} of group {group}")
