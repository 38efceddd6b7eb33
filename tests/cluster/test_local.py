"""LocalCluster, with a stand-in for the nodes: what it starts, what it never touches, what it says."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.cluster import waiting
from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.local import LocalCluster
from strandline.cluster.local_files import Description
from strandline.cluster.ports import Ports, free_ports
from strandline.node.config.node_config import load

STAND_IN = (sys.executable, "-P", str(Path(__file__).with_name("stand_in.py")))


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path / "cluster", program=STAND_IN)
    try:
        yield cluster
    finally:
        with contextlib.suppress(CommandFailed):
            cluster.down(2.0)


def up(local: LocalCluster, *settings: str, nodes: int = 2, timeout: float = 20.0) -> list[int]:
    return local.up(nodes, choose_ports=free_ports, settings=settings, timeout=timeout)


def pids(local: LocalCluster) -> dict[int, int]:
    return {node.node: node.pid for node in local.description.nodes.values() if node.pid is not None}


def test_up_starts_what_does_not_run_and_down_stops_it(local: LocalCluster) -> None:
    assert up(local) == [1, 2]
    first = pids(local)
    assert [status.problem for status in local.status()] == [None, None]
    assert up(local) == []
    assert pids(local) == first
    before = local.description
    assert local.down(5.0) == [1, 2]
    assert pids(local) == {}
    assert not any(Path(f"/proc/{pid}").exists() for pid in first.values())
    assert local.down(5.0) == []
    assert up(local) == [1, 2]
    after = local.description
    assert (after.cluster, after.bootstrap) == (before.cluster, before.bootstrap)


def test_nodes_outlive_their_terminal(local: LocalCluster) -> None:
    up(local, nodes=1)
    (pid,) = pids(local).values()
    assert os.getsid(pid) == pid


def test_kill_and_start_again(local: LocalCluster) -> None:
    up(local)
    first = pids(local)
    assert local.kill(2) == first[2]
    assert sorted(pids(local)) == [1]
    assert [status.problem is None for status in local.status()] == [True, False]
    with pytest.raises(CommandFailed, match="node 2 does not run; start it"):
        local.kill(2)
    assert local.start(2, timeout=60.0) == [2]
    assert pids(local)[2] != first[2]
    assert pids(local)[1] == first[1]
    assert not local.start(2)


def test_up_completes_a_cluster_of_which_a_node_was_killed(local: LocalCluster) -> None:
    up(local)
    local.kill(1)
    assert up(local) == [1]


def test_a_node_that_is_not_there_is_a_mistake(local: LocalCluster) -> None:
    up(local, nodes=1)
    with pytest.raises(CommandFailed, match=r"there is no node 7 in .*; there are 1") as caught:
        local.kill(7)
    assert caught.value.status == MISUSED


def test_configurations_are_the_owners_alone_and_a_node_takes_them(local: LocalCluster) -> None:
    up(local)
    assert stat.S_IMODE(local.folder.stat().st_mode) == 0o700
    secrets = set()
    for node in local.description.nodes.values():
        assert stat.S_IMODE(node.config.stat().st_mode) == 0o600
        assert stat.S_IMODE(node.log.stat().st_mode) == 0o600
        config = load(str(node.config), {}, [])
        assert (config.node.id, config.kafka.port, config.admin.port) == (
            node.node, node.ports.kafka, node.ports.admin
        )  # fmt: skip
        assert config.mesh.port == node.ports.mesh
        assert config.storage.url == str(local.folder / "objects")
        secrets.add(config.cluster.secret)
    (secret,) = secrets
    assert len(secret) == 64
    assert stat.S_IMODE((local.folder / "cluster.json").stat().st_mode) == 0o600
    assert secret not in (local.folder / "cluster.json").read_text()


def test_each_cluster_has_its_own_secret_and_name(tmp_path: Path) -> None:
    made = [Description.new(tmp_path / str(number), {1: Ports(1, 2, 3)}, None, ()) for number in range(2)]
    for each in made:
        each.create()
    assert made[0].cluster != made[1].cluster
    read = [tomllib.loads(each.nodes[1].config.read_text())["cluster"]["secret"] for each in made]
    assert read[0] != read[1]


def test_a_node_that_dies_is_told_by_its_last_words_and_the_others_are_stopped(local: LocalCluster) -> None:
    with pytest.raises(CommandFailed, match=r"node 2 died: the disk is full; the cause is in .*node-2\.log"):
        up(local, "storage.options.mode=dies", "storage.options.only=2")
    assert pids(local) == {}


def test_a_node_that_stays_sick_is_told_by_its_reason(local: LocalCluster) -> None:
    with pytest.raises(
        CommandFailed, match=r"node 1 is not healthy after 1 s: no leader is known; see .*log"
    ):
        up(local, "storage.options.mode=sick", "storage.options.only=1", timeout=1.0)
    assert pids(local) == {}


def test_a_store_that_fails_is_told_soon_and_a_new_cluster_can_have_another(
    local: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "STORAGE_SECONDS", 0.3)
    sick = "storage.options.mode=storeless"
    began = time.monotonic()
    with pytest.raises(CommandFailed, match=r"node 1 is not healthy after \d s: the bucket is missing; see"):
        local.up(2, choose_ports=free_ports, storage="s3://wrong", settings=[sick], timeout=60.0)
    assert time.monotonic() - began < 15
    assert pids(local) == {}
    left = local.description.nodes[1].data / "left"
    left.touch()
    assert local.up(storage="s3://right", settings=[], timeout=60.0) == [1, 2]
    assert not left.exists()
    assert {load(str(node.config), {}, []).storage.url for node in local.description.nodes.values()} == {
        "s3://right"
    }
    local.down(5.0)
    with pytest.raises(CommandFailed, match="has its objects in s3://right"):
        local.up(storage="s3://other")
    # Once it was healthy, its nodes stay up: they go on when the store does.
    with pytest.raises(CommandFailed, match="the bucket is missing"):
        local.up(settings=[sick], timeout=60.0)
    assert sorted(pids(local)) == [1, 2]


def test_a_refused_folder_ends_the_wait_and_its_node_goes_on_knocking(
    local: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "FOLDER_SECONDS", 0.3)
    up(local)
    local.kill(2)
    began = time.monotonic()
    refused = ["storage.options.mode=refused", "storage.options.only=2"]
    local.down(5.0)
    with pytest.raises(CommandFailed) as caught:
        local.up(settings=refused, timeout=60.0)
    assert time.monotonic() - began < 15
    assert str(caught.value) == (
        "node 2 cannot take part: use `node replace 2`;"
        " node 2 goes on running, so that the command can let it in"
    )
    assert 2 in pids(local)


def test_a_cluster_of_new_folders_only_ends_the_wait(
    local: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "FOLDER_SECONDS", 0.3)
    began = time.monotonic()
    with pytest.raises(
        CommandFailed, match="no node that was started can begin: another has the log; no wai"
    ):
        up(local, "storage.options.mode=new")
    assert time.monotonic() - began < 15
    assert pids(local) == {}


def test_one_new_folder_among_others_is_waited_for(
    local: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "FOLDER_SECONDS", 0.3)
    monkeypatch.setattr(waiting, "STORAGE_SECONDS", 0.3)
    with pytest.raises(CommandFailed, match=r"node 2 is not healthy after \d s: another has the log; see"):
        local.up(
            2,
            choose_ports=free_ports,
            settings=["storage.options.mode=new", "storage.options.only=2"],
            timeout=2.0,
        )


def test_a_node_that_only_lacks_others_is_up_and_not_well(local: LocalCluster) -> None:
    assert up(local, "storage.options.mode=lonely", "storage.options.only=2") == [1, 2]
    assert [status.problem for status in local.status()] == [None, "degraded: node 9 (silent)"]


def test_a_node_started_alone_goes_on_running_when_it_is_not_healthy(local: LocalCluster) -> None:
    up(local)
    local.kill(1)
    local.description.configure(["storage.options.mode=sick"])
    with pytest.raises(CommandFailed, match="node 1 is not healthy"):
        local.start(1, timeout=0.5)
    assert sorted(pids(local)) == [1, 2]


def test_a_node_that_does_not_stop_is_killed_and_named(local: LocalCluster) -> None:
    up(local, "storage.options.mode=stubborn", "storage.options.only=2")
    with pytest.raises(CommandFailed, match=r"node 2 did not stop within 0\.5 s and was killed"):
        local.down(0.5)
    assert pids(local) == {}


def test_a_paused_node_can_be_stopped(local: LocalCluster) -> None:
    up(local, nodes=1)
    process = local.description.nodes[1].process
    assert process is not None
    process.signal(signal.SIGSTOP)
    assert local.down(10.0) == [1]


def test_a_port_in_use_is_named_with_who_has_it_and_nothing_is_made(local: LocalCluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CommandFailed) as caught:
            local.up(1, choose_ports=lambda _: {1: Ports(port, 1, 2)})
    assert str(caught.value).startswith(f"port {port} (Kafka of node 1) is in use by pid {os.getpid()} (")
    assert str(caught.value).endswith("end that process, or make a new cluster with --free-ports")
    assert not local.folder.exists()


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"settings": ["foo=bar"]}, r"--set foo=bar: foo: there is no such key"),
        ({"settings": ["foo"]}, r"--set foo: there is no '='"),
        ({"settings": ["log.level=debug", "log.format=xml"]}, r"--set log\.format=xml: log\.format: "),
        ({"settings": ["kafka.port=9999"]}, r"kafka\.port is decided by `cluster up`, for each node"),
        ({"settings": ["storage.url=s3://x/y"]}, "use --storage"),
        ({"settings": ["storage.options.key=\udcff"]}, "is not text"),
        ({"storage": "ftp://there/x"}, r"storage\.url: 'ftp://there/x' is neither"),
        ({"storage": "s3:/bucket/x"}, r"storage\.url: 's3:/bucket/x' names no bucket"),
        ({"nodes": 0}, "0 nodes are not a cluster"),
        ({"nodes": 99}, "99 nodes are not a cluster"),
    ],
)
def test_what_cannot_be_makes_nothing(tmp_path: Path, wanted: dict[str, object], told: str) -> None:
    local = LocalCluster(tmp_path / "new" / "cluster", program=STAND_IN)
    arguments = {"nodes": 2, "choose_ports": free_ports, **wanted}
    with pytest.raises(CommandFailed, match=told) as caught:
        local.up(**arguments)  # type: ignore[arg-type]
    assert caught.value.status == MISUSED
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_a_folder_that_was_there_stays(local: LocalCluster) -> None:
    local.folder.mkdir()
    (local.folder / "mine").touch()
    with pytest.raises(CommandFailed):
        local.up(0)
    assert [each.name for each in local.folder.iterdir()] == ["mine"]


def test_settings_are_replaced_and_dropped_while_nothing_runs(local: LocalCluster) -> None:
    up(local, "log.level=debug", "storage.options.key=1e5", "storage.options.a b=x y")
    file = local.description.nodes[1].config

    def found() -> tuple[str, dict[str, str]]:
        config = load(str(file), {}, [])
        return config.log.level, config.storage.options

    assert found() == ("debug", {"key": "1e5", "a b": "x y"})
    secret = load(str(file), {}, []).cluster.secret
    with pytest.raises(CommandFailed, match=r"runs with the settings log\.level=debug"):
        up(local, "log.level=error")
    local.down(5.0)
    file.write_text(file.read_text().replace('level = "debug"', 'level = "info"'))
    assert local.up(timeout=60.0) == [1, 2]  # what was edited by hand stays
    assert found()[0] == "info"
    local.down(5.0)
    with pytest.raises(CommandFailed, match=r"--set log\.level=loud"):
        up(local, "log.level=loud")
    assert found()[0] == "info"
    assert up(local, "log.level=error") == [1, 2]
    assert found() == ("error", {})
    local.down(5.0)
    assert up(local) == [1, 2]
    assert found() == ("info", {})
    assert load(str(file), {}, []).cluster.secret == secret


def test_a_file_with_a_mistake_is_named_with_the_way_out(local: LocalCluster) -> None:
    up(local)
    local.down(5.0)
    file = local.description.nodes[2].config
    file.write_text(file.read_text() + "\n[log]\nlevel = 'loud'\n")
    for begin in (local.up, local.start):
        with pytest.raises(CommandFailed, match=r"node-2\.toml: log\.level: .*--set or --no-settings"):
            begin()
        assert pids(local) == {}
    local.description.configure([])
    assert local.up(timeout=60.0) == [1, 2]


def test_a_nodes_process_shows_no_secret(local: LocalCluster) -> None:
    setting = "storage.options.secret_access_key=topsecretvalue"
    up(local, setting)
    assert local.restart(1, timeout=60.0) == [1]
    for node in local.description.nodes.values():
        for shown in ("cmdline", "environ"):
            assert b"topsecretvalue" not in Path(f"/proc/{node.pid}/{shown}").read_bytes()
        assert load(str(node.config), {}, []).storage.options["secret_access_key"] == "topsecretvalue"
    for path in local.folder.rglob("*"):
        if path.is_file() and b"topsecretvalue" in path.read_bytes():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_all_that_do_not_run_are_started(local: LocalCluster) -> None:
    up(local, nodes=3)
    first = pids(local)
    local.kill(1)
    assert local.stop(3, 5.0)
    assert not local.stop(3, 5.0)
    assert local.start(timeout=60.0) == [1, 3]
    assert local.start(timeout=60.0) == []
    assert sorted(pids(local)) == [1, 2, 3]
    assert pids(local)[2] == first[2]


def test_a_restart_takes_one_node_at_a_time_and_ends_at_a_sick_one(local: LocalCluster) -> None:
    up(local, nodes=3)
    first = pids(local)
    assert local.restart(timeout=60.0) == [1, 2, 3]
    second = pids(local)
    assert not set(first.values()) & set(second.values())
    local.description.configure(["storage.options.mode=sick", "storage.options.only=2"])
    with pytest.raises(CommandFailed, match="node 2 is not healthy"):
        local.restart(timeout=0.5)
    assert pids(local)[3] == second[3]
    assert pids(local)[1] != second[1]


@pytest.mark.parametrize("lie", [{"started": 1}, {"command": ["node"]}, {"boot": "another"}])
def test_a_stranger_with_the_pid_of_a_node_is_left_alone(local: LocalCluster, lie: dict[str, object]) -> None:
    up(local, nodes=1)
    truth = local.description.nodes[1].process
    assert truth is not None
    path = local.folder / "cluster.json"
    description = json.loads(path.read_text())
    honest = json.dumps(description)
    description["nodes"][0]["process"].update(lie)
    path.write_text(json.dumps(description))
    assert local.down(1.0) == []
    with pytest.raises(CommandFailed, match="does not run"):
        local.kill(1)
    assert truth.alive()
    path.write_text(honest)
    assert local.down(5.0) == [1]


def test_a_pid_that_went_to_another_process_is_left_alone(local: LocalCluster) -> None:
    up(local, nodes=1)
    local.kill(1)
    with subprocess.Popen(["sleep", "60"]) as stranger:
        path = local.folder / "cluster.json"
        description = json.loads(path.read_text())
        description["nodes"][0]["process"]["pid"] = stranger.pid
        path.write_text(json.dumps(description))
        assert local.down(1.0) == []
        assert stranger.poll() is None
        stranger.kill()


def test_two_commands_at_once_start_each_node_once(local: LocalCluster) -> None:
    started: list[list[int]] = []
    threads = [threading.Thread(target=lambda: started.append(up(local))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(started) == [[], [1, 2]]
    assert sorted(pids(local)) == [1, 2]


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"nodes": 1}, "has 2 nodes, not 1; to take one out: strandline node drain 2, .* node remove 2"),
        ({"nodes": 16}, "16 nodes are too many here"),
        ({"storage": "s3://elsewhere"}, "has its objects in"),
        ({"settings": ["log.level=debug"]}, r"runs with the settings \(none\); .* first take it down"),
    ],
)
def test_what_a_cluster_was_made_with_stays(
    local: LocalCluster, wanted: dict[str, object], told: str
) -> None:
    up(local)
    with pytest.raises(CommandFailed, match=told) as caught:
        local.up(**wanted)  # type: ignore[arg-type]
    assert caught.value.status == MISUSED


def test_more_nodes_join_by_the_addresses_of_those_there_are(local: LocalCluster) -> None:
    up(local)
    before = {node.node: node.config.read_text() for node in local.description.nodes.values()}
    assert up(local, nodes=4) == [3, 4]
    found = local.description
    assert {node: found.nodes[node].config.read_text() for node in before} == before, "nothing changes there"
    joined = load(str(found.nodes[4].config), {}, [])
    assert joined.cluster.nodes == ()
    asked = [found.nodes[node].ports.mesh for node in (1, 2, 3)]
    assert [seed.port for seed in joined.cluster.seeds] == asked
    assert joined.mesh.told == ("127.0.0.1", found.nodes[4].ports.mesh)
    assert joined.cluster.secret == load(str(found.nodes[1].config), {}, []).cluster.secret
    assert up(local, nodes=4) == []
    local.stop(3)
    local.description.forget(3)
    assert up(local, nodes=4) == [5], "an id that a node had is not given again"
    assert sorted(pids(local)) == [1, 2, 4, 5]
    local.down(5.0)
    assert up(local, "log.level=debug", nodes=4) == [1, 2, 4, 5]
    assert load(str(local.description.nodes[5].config), {}, []).cluster.seeds, "also written again"


def test_below_the_feature_level_no_node_is_added_to_the_files(local: LocalCluster) -> None:
    up(local, "storage.options.level=4")
    with pytest.raises(CommandFailed, match="the cluster is at feature level 4, and 5 is needed; raise it"):
        up(local, "storage.options.level=4", nodes=3)
    assert sorted(local.description.nodes) == [1, 2]


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 99}', '{"format": 1, "cluster": "x"}'])
def test_a_damaged_description_is_a_mistake_that_is_named(local: LocalCluster, content: str) -> None:
    local.folder.mkdir()
    (local.folder / "cluster.json").write_text(content)
    with pytest.raises(CommandFailed, match=r"cluster\.json cannot be read") as caught:
        local.status()
    assert caught.value.status == MISUSED


def test_looking_for_a_cluster_makes_no_folder(local: LocalCluster) -> None:
    for look in (local.status, local.down, lambda: local.kill(1)):
        with pytest.raises(CommandFailed, match="there is no cluster in"):
            look()
    assert not local.folder.exists()


def test_a_failed_start_is_quick(local: LocalCluster) -> None:
    began = time.monotonic()
    with pytest.raises(CommandFailed):
        up(local, "storage.options.mode=dies", timeout=60.0)
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("way", ["up", "start"])
def test_a_cluster_that_lost_all_is_not_founded_again_while_its_storage_is_not_mounted(
    local: LocalCluster, way: str
) -> None:
    up(local)
    local.down(5.0)
    storage = Path(local.description.storage)
    away = storage.rename(storage.with_name("away"))
    (first := local.description.nodes[1].data / "wal").mkdir(parents=True)
    local.start(1, timeout=0)
    local.stop(1)
    first.rmdir()
    with pytest.raises(CommandFailed, match=r"is missing, and so are the data folders .* cluster restore"):
        getattr(local, way)()
    assert not storage.exists()
    away.rename(storage)
    assert local.start(timeout=0) == [1, 2], "the nodes tell what else is lost"
