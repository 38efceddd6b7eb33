"""The parts of `scripts/mix` that need no cluster: the memory group, what is set in it, what is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.cluster.admin_client import AdminClient, Answer
from tests.programs.mix.memory import MemoryGroup, NoGroup, Use
from tests.programs.mix.run import main
from tests.programs.mix.watch import Told, told

V1_STAT = "cache 1\ntotal_cache 600\ntotal_workingset_refault_file 7\ntotal_pgmajfault 8\n"
V2_STAT = "anon 400\nfile 600\nworkingset_refault_file 7\npgmajfault 8\n"


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_a_group_of_version_1_is_below_our_own(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("9:name=systemd:/\n4:cpu,memory:/us\n0::/\n")
    (tmp_path / "memory" / "us").mkdir(parents=True)
    group = MemoryGroup.make(tmp_path, own)
    assert group.folder.parent == tmp_path / "memory" / "us"
    write(group.folder, memory__stat=V1_STAT, memory__usage_in_bytes="1000\n",
          memory__oom_control="oom_kill_disable 1\nunder_oom 0\noom_kill 2\n")  # fmt: skip
    assert group.use() == Use(total=1000, files=600, refaults=7, major_faults=8, killed=2)
    assert group.use().held == 400
    with group.entered():
        assert (group.folder / "cgroup.procs").exists()
    assert (tmp_path / "memory" / "us" / "cgroup.procs").exists(), "it came back"
    group.limit(500)
    assert (group.folder / "memory.limit_in_bytes").read_text() == "500"
    group.limit(None)
    assert (group.folder / "memory.limit_in_bytes").read_text() == "-1"


def test_a_group_of_version_2_is_beside_our_own(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/user/us\n")
    write(tmp_path / "user" / "us", cgroup__controllers="memory\n")
    group = MemoryGroup.make(tmp_path, own)
    assert group.folder.parent == tmp_path / "user"
    assert (tmp_path / "user" / "cgroup.subtree_control").read_text() == "+memory"
    write(group.folder, memory__stat=V2_STAT, memory__current="1000\n", memory__events="oom 3\noom_kill 2\n")
    assert group.use() == Use(total=1000, files=600, refaults=7, major_faults=8, killed=2)
    group.limit(None)
    assert (group.folder / "memory.max").read_text() == "max"


def test_without_a_memory_controller_the_reason_is_said(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/\n")
    with pytest.raises(NoGroup, match="no memory controller"):
        MemoryGroup.make(tmp_path, own)


def test_a_limit_that_would_meet_nodes_at_their_start_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--before", "0.24"])
    assert "--before 0.24: give 0.25 or more; nodes that have just started" in capsys.readouterr().err


def test_a_page_of_metrics_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    page = """# TYPE strandline_raft_elections_total counter
strandline_raft_elections_total{rank="partition",cause="silence"} 3
strandline_event_loop_lag_seconds_bucket{le="0.2"} 8
strandline_event_loop_lag_seconds_bucket{le="+Inf"} 10
strandline_event_loop_lag_seconds_count 10
strandline_event_loop_lag_seconds_sum 2.5
strandline_event_loop_held_longest_seconds{part="a.b"} 0.5
strandline_partition_leader{topic="t",partition="0"} 1
process_cpu_seconds_total 1.5
"""
    monkeypatch.setattr(AdminClient, "request", lambda *_, **__: Answer(200, page))
    found = told(["one", "other"])
    assert found.unwanted() == {"partition": 6}
    assert (found.long_lags, found.lag_seconds, found.processor_seconds) == (4, 5.0, 3.0)
    assert found.held == {"a.b": 0.5}


def test_the_first_election_of_a_group_is_wanted_and_no_other_is() -> None:
    before, after = Told(), Told()
    before.elections.update({("partition", "first"): 9, ("partition", "silence"): 1})
    after.elections.update(
        {("partition", "first"): 12, ("partition", "silence"): 3, ("controller", "handed"): 1}
    )
    assert after.since(before).unwanted() == {"partition": 2, "controller": 1}
    assert after.since(after).unwanted() == {}
