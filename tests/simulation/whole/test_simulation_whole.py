"""The simulation of whole nodes: some seeds, the same run every time, every sabotage found, and past bugs."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from strandline.node.controller.client import ControllerClient
from strandline.node.partition.batch import ProducedBatch
from strandline.statemachine.controller.controller_commands import FEATURE_LEVEL, Command, RegisterNode
from tests import ROOT
from tests.controller.brokers import Brokers
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.wire.batches import build
from tests.partition.lone import Lone
from tests.runtime.jumping_loop import run
from tests.simulation.run import main
from tests.simulation.sabotage import Sabotage
from tests.simulation.whole.plan import ADMIN, EPOCHS_REST_FROM, FAR_FROM, FAULTS, LEADER_CLAIMS_FROM
from tests.simulation.whole.sabotages import SABOTAGES
from tests.simulation.whole.scenario import run_seed
from tests.simulation.whole.themes import THEMES, plan_of

SEED = 11


@pytest.mark.parametrize("seed", range(len(THEMES)))
def test_a_seed_finds_nothing(seed: int) -> None:
    report = run_seed(seed)
    assert report.findings == []
    assert report.outcomes["acknowledged"] > 0
    assert report.outcomes["consumed"] > 0
    assert report.faults.total() > 0
    if plan_of(seed).theme == "windows":  # it meets what it is for
        assert report.outcomes["slides"] > 20
        assert report.outcomes["refused epochs"] > 0
        assert report.outcomes["restaged"] > 0


@pytest.mark.parametrize("seed", [5, 35])
def test_batches_in_the_log_itself_are_stored(seed: int) -> None:
    assert plan_of(seed).inline.max_batch_bytes > 0
    report = run_seed(seed)
    assert report.findings == []
    assert report.outcomes["inline"] > 0
    assert report.outcomes["stored inline"] > 0


@pytest.mark.parametrize("seed", [2024, 2152])
def test_access_is_controlled_by_entries_that_change(seed: int) -> None:
    """In the second one a removal came to a node that could not reach the controller."""
    assert plan_of(seed).acls
    report = run_seed(seed)
    assert report.findings == []
    assert report.outcomes["changes of access"] > 15
    assert report.outcomes["refused by access"] > 50
    assert report.outcomes["answers by access"] > report.outcomes["refused by access"]
    assert report.outcomes["changes of logins"] > 10
    assert report.outcomes["refused by logins"] > 50
    assert report.outcomes["answers by logins"] - report.outcomes["refused by logins"] > 50


def test_the_leader_alone_makes_the_storage_the_clusters() -> None:
    assert plan_of(LEADER_CLAIMS_FROM).leader_claims
    assert run_seed(LEADER_CLAIMS_FROM).findings == []


@pytest.mark.parametrize("seed", [EPOCHS_REST_FROM, EPOCHS_REST_FROM + 5, EPOCHS_REST_FROM + 52])
def test_an_epoch_that_rests_while_nothing_is_stored_costs_nothing(seed: int) -> None:
    """At the end of a run level zero is empty: what was stored kept the epoch rising until then. In the last
    seed a partition has no entry but its first leader's first."""
    assert plan_of(seed).epochs_rest
    assert run_seed(seed).findings == []


@pytest.mark.parametrize("seed", [2000, 2005])
def test_nodes_that_join_and_leave_cost_nothing(seed: int) -> None:
    joining = plan_of(seed).joining
    assert joining
    report = run_seed(seed)
    assert report.findings == []
    assert report.faults["join"] == len(joining)
    assert report.faults["removed"] == 1


@pytest.mark.parametrize("seed", [2022, 2081])
def test_all_that_changes_members_at_the_same_time_costs_nothing(seed: int) -> None:
    """Both wipe a folder, and the node that was removed comes back.

    In the second one it is a founder's, while a node leads that its file does not name, since that joined.
    """
    plan = plan_of(seed)
    assert plan.upheaval is not None
    assert plan.upheaval.replaces_disks == (seed == 2081)
    report = run_seed(seed)
    assert report.findings == []
    assert report.faults["join"] == len(plan.joining)
    assert report.faults["wiped folder"] == report.faults["folder replaced"] == 1
    assert report.faults["removed"] == report.faults["removed and back, as it was"] == 1


def test_upheavals_cover_what_they_are_for() -> None:
    plans = [plan_of(seed) for seed in range(2000, 4000) if seed // 8 % 8 == 4]
    found = [plan.upheaval for plan in plans if plan.upheaval is not None]
    assert len(found) > 200
    assert {plan.theme for plan in plans if plan.upheaval} == set(THEMES)
    assert {one.replaces_disks for one in found} == {one.balancing for one in found} == {False, True}
    assert {one.returns for one in found if one.late and one.away_seconds} == {"never", "as it was", "empty"}
    assert not any(plan_of(seed).upheaval for seed in range(2000))


def test_a_move_ends_while_snapshots_take_longer_to_send_than_to_become_old() -> None:
    """More than a second passes until one has arrived, and several are taken meanwhile, without a pause."""
    plan = plan_of(5157)
    assert "move" in plan.admin
    assert plan.raft.snapshot_chunk_bytes * plan.raft.snapshot_window < plan.raft.snapshot_bytes / 5
    assert run_seed(5157).findings == []


@pytest.mark.parametrize("seed", [12, 31, 69])
def test_folders_that_are_wiped_cost_nothing(seed: int) -> None:
    report = run_seed(seed)
    assert report.findings == []
    assert report.faults["wiped folder"] == report.faults["folder replaced"] > 0


@pytest.mark.parametrize("seed", [121, 192])
def test_a_cluster_without_its_folders_serves_and_changes_nothing(seed: int) -> None:
    report = run_seed(seed)
    assert report.findings == []
    assert report.faults["all folders lost"] == 1


@pytest.mark.parametrize("seed", [2037, 2039])
def test_a_cluster_that_lost_all_folders_is_restored_and_goes_on(seed: int) -> None:
    """In the first one, topics were made after the point; in the second one, objects were merged after it."""
    assert plan_of(seed).lost_folders == "restored"
    report = run_seed(seed)
    assert report.findings == []
    assert report.faults["all folders lost"] == report.faults["restored"] == 1
    assert report.faults["batches lost"] > 0
    assert report.outcomes["acknowledged"] > 0


@pytest.mark.parametrize("seed", [2009])
def test_a_bucket_far_away_costs_nothing(seed: int) -> None:
    """With requests that are sent twice, a slow tail, and 503 for what is above a rate."""
    report = run_seed(seed)
    assert report.findings == []
    assert report.faults["slow tail"] + report.faults["throttled store"] > 0
    assert report.outcomes["sent twice"] > 0


@pytest.mark.timeout(240)
def test_the_same_seed_gives_the_same_run_in_every_process() -> None:
    program = f"from tests.simulation.whole.scenario import run_seed; print(run_seed({SEED}).digest)"
    digests = {run_seed(SEED).digest}
    for hash_seed in ("0", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout.strip())
    assert len(digests) == 1


def test_plans_cover_every_fault_and_theme() -> None:
    plans = [plan_of(seed) for seed in range(200)]
    assert {kind for plan in plans for kind in plan.faults} == set(FAULTS)
    assert {kind for plan in plans for kind in plan.admin} == {*ADMIN, "move"}
    assert {plan.theme for plan in plans} == set(THEMES)
    assert {len(plan.nodes) for plan in plans} == {3, 5}
    assert {plan.lost_folders for plan in plans} == {"none", "one", "all"}
    far = [seed for seed in range(FAR_FROM, FAR_FROM + 64) if plan_of(seed).hedging]
    assert {plan_of(seed).theme for seed in far} == set(THEMES)
    assert not any(plan.hedging for plan in plans)


@pytest.mark.parametrize("sabotage", SABOTAGES.values(), ids=SABOTAGES)
def test_the_simulation_finds(sabotage: Sabotage) -> None:
    assert sabotage.is_found(run_seed), f"{sabotage.hole}: not found with seeds {sabotage.found_with}"


def test_the_command_runs_whole_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--whole", "--seeds", "1", "--from", str(SEED), "--jobs", "1"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("simulate --whole ok: 1 seeds")
    assert "lost 0, doubled 0" in line


def test_a_late_registration_of_the_process_before_keeps_no_node_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process before sent it, died, and it was applied when its successor had looked who to replace."""
    with Brokers() as cluster:
        before = cluster.brokers[3].controller.machine.nodes[3]
        cluster.crash(3)
        cluster.start(3)
        folder = cluster.brokers[1].controller.machine.folders[3].folder
        late = RegisterNode(
            3, 4711, before.boot_id, "10.0.0.3", 9092, "10.0.0.3", 9000, 9644, 1, FEATURE_LEVEL, 0, folder
        )  # fmt: skip
        submit = ControllerClient.submit
        came: list[int] = []

        async def submit_late(self: ControllerClient, command: Command, timeout: float) -> Any:  # noqa: ASYNC109
            if isinstance(command, RegisterNode) and not came:
                came.append(self._node_id)
                await submit(self, late, timeout)
            return await submit(self, command, timeout)

        monkeypatch.setattr(ControllerClient, "submit", submit_late)
        cluster.wait(lambda: cluster.registered(3) or bool(cluster.fatal))
        assert cluster.fatal == {}
        assert came == [3]
        assert cluster.brokers[3].controller.machine.nodes[3].boot_id == cluster.brokers[3].boot_id


def test_a_batch_refused_before_its_leader_is_ready_is_not_passed_over() -> None:
    """Found by seeds: the next batch of a producer that nobody knew yet passed for its first."""

    async def refused() -> None:
        node = FakeNode()
        node.topic()
        node.partition().leads = False
        response = await node.produce({0: build(producer=(7, 0, 0))})
        assert response.responses[0].partition_responses[0].error_code is ErrorCode.not_leader_or_follower
        assert [batch.base_sequence for batch in node.partition().refused] == [0]

    run(refused)
    with Lone() as lone:
        lone.group.lose()
        lone.partition.missed(ProducedBatch(b"0", 1, 0, 7, 0, 0, 1))
        lone.group.lead(2)
        lone.append("1", producer=7, sequence=1)
        assert lone.codes() == {"1": "not_leader_or_follower"}
        lone.append("0", producer=7, sequence=0)
        assert "0" not in lone.codes()
