"""A real node process: how it starts, what keeps it from starting, and how it ends."""

from __future__ import annotations

import contextlib
import http.client
import json
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer

from strandline.node.objectstore.unfinished_files import PARTIAL
from tests.node.one_node import SECONDS, healthy, refusal, started, write_config


def unhealthy(folder: Path, process: subprocess.Popen[str], reason: str) -> dict[str, str]:
    """Wait until /health names a problem; that problem."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[1]
        with contextlib.suppress(OSError, ValueError):
            told = json.loads((folder / "data" / "node.json").read_text())
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{told['admin_port']}/health", timeout=5).close()
            except urllib.error.HTTPError as error:
                with error:
                    problems: list[dict[str, str]] = json.loads(error.read())["problems"]
                found = [problem for problem in problems if problem["reason"] == reason]
                if found:
                    return found[0]
        time.sleep(0.05)
    raise AssertionError(f"it never says {reason}")


def test_it_says_where_it_listens_and_stops_cleanly_on_a_signal(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    for _ in range(2):  # The second time it finds what the first left.
        with started(config) as process:
            told = healthy(tmp_path, process)
            assert told["pid"] == process.pid
            assert told["node"] == 1
            socket.create_connection(("127.0.0.1", told["kafka_port"]), 5).close()
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=SECONDS)
            assert process.returncode == 0, errors
            assert "node 1 stopped" in errors
            assert "Traceback" not in errors
            assert not (tmp_path / "data" / "node.json").exists()


def test_a_storage_that_goes_is_told_everywhere_and_so_is_its_return(tmp_path: Path) -> None:
    with started(write_config(tmp_path), "--set", "inline.max_batch_bytes=0") as process:
        told = healthy(tmp_path, process)
        producer = Producer(
            {
                "bootstrap.servers": f"127.0.0.1:{told['kafka_port']}",
                "message.timeout.ms": 30_000,
                "retries": 0,
            }
        )
        producer.produce("t", b"before")
        assert producer.flush(SECONDS) == 0
        (tmp_path / "objects").rename(tmp_path / "away")
        refused: list[KafkaError | None] = []
        producer.produce("t", b"lost", on_delivery=lambda error, _: refused.append(error))
        producer.flush(SECONDS)
        assert [error and error.name() for error in refused] == ["KAFKA_STORAGE_ERROR"]
        url = f"http://127.0.0.1:{told['admin_port']}/health"
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(url, timeout=5)
        with caught.value as answer:
            (problem,) = json.loads(answer.read())["problems"]
        assert problem["reason"] == "storage_failing"
        assert f"{tmp_path}/objects: puts fail" in problem["detail"]
        (tmp_path / "away").rename(tmp_path / "objects")
        healthy(tmp_path, process)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=SECONDS)
    assert len([line for line in errors.splitlines() if "puts fail" in line]) == 1
    assert "it takes puts again" in errors
    assert not list((tmp_path / "objects").glob("health/*"))


def test_a_node_that_has_served_waits_for_a_storage_that_is_not_mounted(tmp_path: Path) -> None:
    """As after a boot: a folder in the place of the mount would stand in its way."""
    objects, away = tmp_path / "objects", tmp_path / "away"
    config = write_config(tmp_path)
    with started(config) as process:
        healthy(tmp_path, process)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SECONDS)
    objects.rename(away)
    with started(config) as process:
        assert process.stderr is not None
        assert "the store's folder is missing: mount it again" in process.stderr.readline()
        assert not objects.exists()
        away.rename(objects)
        healthy(tmp_path, process)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SECONDS)
        assert process.returncode == 0
    objects.rename(away)
    with started(config) as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SECONDS)
        assert process.returncode == 0, "it can be stopped while it waits"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, int]]]:
    """A node that runs: its folder, and what it says of itself."""
    folder = tmp_path_factory.mktemp("running")
    with started(write_config(folder)) as process:
        yield folder, healthy(folder, process)
        assert process.poll() is None


def test_another_cluster_s_storage_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    (tmp_path / "objects" / "cluster").write_text('{"format": 2, "cluster": "other", "incarnation": "2026"}')
    with started(write_config(tmp_path)) as process:
        assert "storage.url: what is stored there belongs to cluster 'other'" in refusal(process)


def test_a_wrong_key_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    with started(write_config(tmp_path), "--set", "kafka.prot=1") as process:
        line = refusal(process)
    assert "kafka.prot: there is no such key: did you mean kafka.port?" in line
    assert line.startswith("strandline: ")


def test_it_is_asked_over_http_by_the_names_that_are_configured(tmp_path: Path) -> None:
    with started(write_config(tmp_path), "--set", "admin.hosts=node-1.example.org") as process:
        address = f"127.0.0.1:{healthy(tmp_path, process)['admin_port']}"
        for name, status in (("node-1.example.org", 200), ("node-2.example.org", 421)):
            connection = http.client.HTTPConnection(address, timeout=SECONDS)
            connection.request("GET", "/metrics", headers={"Host": f"{name}:9644"})
            assert connection.getresponse().status == status
            connection.close()


@pytest.mark.s3
def test_a_bucket_that_is_missing_is_told_at_once_and_mended_without_a_restart(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.objectstore.moto_server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        endpoint = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        options = {
            "endpoint": endpoint,
            "region": "us-east-1",
            "access_key_id": "a",
            "secret_access_key": "b",
        }
        settings = [f"storage.options.{name}={value}" for name, value in options.items()]
        arguments = [
            part for setting in ("storage.url=s3://none/p", *settings) for part in ("--set", setting)
        ]
        with started(write_config(tmp_path), *arguments) as process:
            problem = unhealthy(tmp_path, process, "storage_failing")
            for part in ("s3://none/p", "the bucket is missing", "create the bucket"):
                assert part in problem["detail"]
            bucket = urllib.request.Request(f"{endpoint}/none", method="PUT")
            urllib.request.urlopen(bucket, timeout=10).close()
            healthy(tmp_path, process)
        server.stdin.close()


def test_an_option_that_the_store_has_not_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    with started(
        write_config(tmp_path), "--set", "storage.url=s3://b", "--set", "storage.options.endpont=x"
    ) as process:
        assert refusal(process) == (
            "strandline: storage.url: s3://b: Configuration key: 'endpont' is not valid for store 'S3': "
            "correct storage.url or storage.options"
        )


def test_a_disk_without_room_for_the_log_is_one_line_with_its_file(tmp_path: Path) -> None:
    with started(write_config(tmp_path), file_bytes=1 << 20) as process:
        _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    (line,) = [each for each in errors.splitlines() if each.strip()]
    assert f"the node cannot start: {tmp_path}/data/wal/" in line
    assert ": File too large: see that the disk works" in line


def test_a_data_folder_that_cannot_be_is_one_line_with_the_key(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with started(write_config(tmp_path), "--set", f"node.data={tmp_path}/file/data") as process:
        _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    (line,) = [each for each in errors.splitlines() if each.strip()]
    assert f"the node cannot start: {tmp_path}/file/data" in line
    assert "Not a directory: a file is where a folder is needed: correct node.data" in line


@pytest.mark.parametrize("storage", ["objects", "other-objects"])
def test_a_second_process_on_the_same_folder_is_refused(
    running: tuple[Path, dict[str, int]], storage: str
) -> None:
    folder, _ = running
    (folder / storage / PARTIAL).mkdir(parents=True, exist_ok=True)  # one that is missing is waited for
    override = f"storage.url={folder}/{storage}"
    with started(folder / "node.toml", "--set", override) as process:
        line = refusal(process)
        assert "another process uses this folder" in line or "stop the other process" in line
        assert "correct storage.url" not in line


@pytest.mark.parametrize("which", ["kafka", "admin", "mesh"])
def test_a_port_in_use_is_named(running: tuple[Path, dict[str, int]], tmp_path: Path, which: str) -> None:
    _, told = running
    port = told[f"{which}_port"]
    override = f"cluster.nodes=1@127.0.0.1:{port}" if which == "mesh" else f"{which}.port={port}"
    with started(write_config(tmp_path), "--set", override) as process:
        line = refusal(process)
        assert f"{which}: cannot listen on 127.0.0.1:{port}" in line
        assert "stop the process" in line


def test_a_store_that_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "a file"
    file.write_text("")
    config = write_config(tmp_path, url=f'[storage]\nurl = "{file}/objects"')
    with started(config) as process:
        assert "storage.url" in refusal(process)


def test_a_disk_that_fails_ends_it_and_nobody_is_sent_to_it_any_more(tmp_path: Path) -> None:
    with started(write_config(tmp_path), "--set", "cluster.epoch_seconds=200ms") as process:
        healthy(tmp_path, process)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        _, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == 1
        assert "the node stops" in errors
        assert str(tmp_path / "data" / "wal") in errors
        assert "mend the disk" in errors
        assert not (tmp_path / "data" / "node.json").exists()


def test_a_killed_process_leaves_an_address_that_the_next_one_takes_away(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    with started(config) as process:
        healthy(tmp_path, process)
    assert (tmp_path / "data" / "node.json").exists()
    blocked = socket.create_server(("127.0.0.1", 0))
    with blocked, started(config, "--set", f"kafka.port={blocked.getsockname()[1]}") as process:
        assert "kafka: cannot listen" in refusal(process)
    assert not (tmp_path / "data" / "node.json").exists()


def test_files_of_a_listener_that_cannot_be_used_are_one_line(tmp_path: Path) -> None:
    gone = tmp_path / "gone.pem"
    tls = f'protocol = "SSL"\ncertificate = "{gone}"\nkey = "{gone}"'
    config = write_config(tmp_path, kafka=f"[listeners.public]\nport = 0\n{tls}")
    with started(config) as process:
        told = refusal(process)
    assert told.startswith(f"strandline: listeners.public: {gone}: No such file or directory: let the node's")


def test_a_thread_that_hangs_does_not_keep_a_process_that_has_to_end() -> None:
    hangs = "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()"
    ends = "from strandline.node.runtime.process_end import end_within; end_within(0.2, 1)"
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", f"{hangs}; {ends}"], timeout=SECONDS, check=False)
    assert ended.returncode == 1
    assert time.monotonic() - began < 30


def test_a_node_imports_nothing_large_that_it_does_not_use() -> None:
    """kio imports hypothesis where it finds it, PySyncObj cryptography: half of what a node's start costs."""
    command = [sys.executable, "-X", "importtime", "-m", "strandline.node.process", "--help"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stderr
    modules = Counter(line.rpartition("|")[2].strip().partition(".")[0] for line in told.splitlines())
    assert min(modules[name] for name in ("kio", "pysyncobj", "uvloop")) > 1
    # A module that was looked for and not found is listed too.
    for name in ("hypothesis", "cryptography", "pyspark", "numpy", "pandas", "rich", "pytest"):
        assert modules[name] <= 1, name


def test_a_damaged_log_stops_it_with_the_file_named(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    with started(config) as process:
        healthy(tmp_path, process)
    segment = sorted((tmp_path / "data" / "wal").glob("*.log"))[0]
    with segment.open("r+b") as file:
        file.write(bytes(64))
    with started(config) as process:
        _, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == 1
        assert str(tmp_path / "data" / "wal") in errors
        assert "Traceback" not in errors


@pytest.mark.parametrize("fails", [False, True], ids=["asked to stop", "the disk fails"])
def test_node_whose_disk_hangs_as_it_takes_its_vote_can_be_stopped(tmp_path: Path, fails: bool) -> None:
    """Its start waits for that write, and after a failure its end is never told of."""
    program = (
        "import asyncio, sys\n"
        "from strandline.node.controller.folder_keeper import FolderKeeper\n"
        "from strandline.node.process import main\n"
        "async def hang(keeper):\n"
        "    print('hangs', file=sys.stderr, flush=True)\n"
        + ("    keeper._host.halt(RuntimeError('the disk: broken'))\n" if fails else "")
        + "    await asyncio.Event().wait()\n"
        "FolderKeeper._found = hang\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, "--config", str(write_config(tmp_path))],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert any("hangs" in line for line in process.stderr)
        if not fails:
            process.send_signal(signal.SIGTERM)
        process.wait(timeout=60.0)
        said = process.stderr.read()  # not by communicate, which leaves out what was read ahead
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == (1 if fails else 0)
    assert ("the disk: broken" if fails else "node 1 stopped before it had started") in said
