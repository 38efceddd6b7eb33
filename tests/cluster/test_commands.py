"""The commands against three real nodes, run in this process, or in one of their own where signals matter."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strandline.cluster.collection import REASONS
from strandline.cluster.ports import free_ports
from tests.cluster.command import Done, as_json, strandline
from tests.cluster.real_cluster import RealCluster, running_cluster

STRANDLINE = Path(sys.executable).with_name("strandline")


Run = Callable[..., Done]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with running_cluster(tmp_path_factory.mktemp("commands") / "cluster") as running:
        yield running


@pytest.fixture
def run(cluster: RealCluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(*arguments: str, here: bool = True) -> Done:
        where = ["--cluster", str(cluster.folder)] if here else []
        return strandline(capfd, monkeypatch, *arguments, *where)

    return run


@pytest.fixture
def lines(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "lines"
        path.write_bytes(text.encode())
        return str(path)

    return write


def test_a_topic_from_its_creation_to_its_end(run: Run) -> None:
    assert run("topic", "create", "birds", "--partitions", "2", "--config", "retention.ms=3600000") == (
        0, "created: birds\n", ""
    )  # fmt: skip
    assert run("topic", "create", "birds").err == (
        "strandline: topic birds cannot be created: Topic 'birds' already exists (TOPIC_ALREADY_EXISTS);"
        " choose another name, or add --if-not-exists\n"
    )
    assert run("topic", "create", "birds", "--if-not-exists").out == "exists: birds\n"
    listed = as_json(run("topic", "list", "--json"))["topics"]
    assert {"topic": "birds", "partitions": 2, "replication_factor": 3} in listed
    described = as_json(run("topic", "describe", "birds", "--json"))
    assert described["configs"] == {"retention.ms": "3600000"}
    assert [each["partition"] for each in described["partitions"]] == [0, 1]
    assert all(sorted(each["replicas"]) == [1, 2, 3] for each in described["partitions"])
    assert "retention.ms=3600000" in run("topic", "describe", "birds").out
    assert run("topic", "delete", "birds").out == "deleted: birds\n"
    gone = run("topic", "describe", "birds")
    assert gone.status == 1
    assert "UNKNOWN_TOPIC_OR_PART" in gone.err
    assert gone.err.count("\n") == 1


def test_lines_come_back_as_they_were(run: Run, lines: Callable[[str], str]) -> None:
    run("topic", "create", "words")
    text = "a,1\nb,2,3\nä,\n,4\r\nlast,5"
    done = as_json(run("produce", "words", "--file", lines(text), "--key-separator", ",", "--json"))
    assert (done["records"], done["partitions"]) == (5, {"0": 5})
    assert run("consume", "words").out == "1\n2,3\n\n4\n5\n"
    assert run("consume", "words", "--format", "key-value").out == "a\t1\nb\t2,3\nä\t\n\t4\nlast\t5\n"


def test_several_topics_and_what_becomes_of_each(run: Run) -> None:
    made = run("topic", "create", "several-a", "several-b", "several-a", "--partitions", "2")
    assert (made.status, made.out, made.err) == (0, "created: several-a\ncreated: several-b\n", "")
    partly = run("topic", "create", "several-b", "several-c")
    assert (partly.status, partly.out, partly.err.count("\n")) == (1, "created: several-c\n", 1)
    assert "topic several-b cannot be created" in partly.err
    gone = run("topic", "delete", "__consumer_offsets", "several-a", "no-such", "several-b", "several-c")
    assert (gone.status, gone.err.count("\n")) == (1, 1)
    assert gone.out == "deleted: several-a, several-b, several-c\n"
    assert "topic no-such cannot be deleted" in gone.err


def test_an_internal_topic_is_called_so(run: Run) -> None:
    for arguments in (["delete", "__consumer_offsets"], ["delete", "__transaction_state"]):
        refused = run("topic", *arguments)
        assert (refused.status, refused.out, refused.err.count("\n")) == (1, "", 1)
        assert "it is internal" in refused.err


def test_what_the_client_itself_refuses_is_one_line(run: Run) -> None:
    for count in ("200000", "20000000000"):
        refused = run("topic", "create", "wide", "--partitions", count)
        assert (refused.status, refused.out, refused.err.count("\n")) == (2, "", 1)
        assert refused.err.startswith("strandline: topic wide cannot be created: ")
        assert "mistake in strandline" not in refused.err


def test_a_compacted_topic_is_one_like_any_other(run: Run) -> None:
    made = run("topic", "create", "by-key", "--config", "cleanup.policy=compact")
    assert (made.status, made.out, made.err) == (0, "created: by-key\n", "")
    for policy in ("compact,delete", "delete"):
        assert run("topic", "alter", "by-key", "--config", f"cleanup.policy={policy}").err == ""


def test_a_topic_is_altered(run: Run) -> None:
    run("topic", "create", "grows", "--config", "retention.ms=1000000")
    altered = run(
        "topic",
        "alter",
        "grows",
        "--partitions",
        "3",
        "--config",
        "max.message.bytes=5000",
        "--unset",
        "retention.ms",
    )
    assert altered.out == "altered: grows (max.message.bytes=5000, retention.ms: default, 3 partitions)\n"
    described = as_json(run("topic", "describe", "grows", "--json"))
    assert described["configs"] == {"max.message.bytes": "5000"}
    assert len(described["partitions"]) == 3
    for wrong in (
        ["--partitions", "2"],
        ["--config", "nonsense=1"],
        ["--config", "retention.ms"],
        ["--config", "retention.ms=1", "--unset", "retention.ms"],
        [],
    ):
        refused = run("topic", "alter", "grows", *wrong)
        assert (refused.status in (1, 2), refused.out, refused.err.count("\n")) == (True, "", 1)
    assert run("topic", "alter", "no-such", "--partitions", "2").status == 1
    assert run("topic", "alter", "no-such", "--replication-factor", "2").status == 1


def replicas(run: Run, topic: str) -> list[list[int]]:
    return [each["replicas"] for each in as_json(run("topic", "describe", topic, "--json"))["partitions"]]


def test_a_topic_gets_more_replicas_and_fewer(run: Run, lines: Callable[[str], str]) -> None:
    run("topic", "create", "wider", "--partitions", "4", "--replication-factor", "1")
    assert run("produce", "wider", "--file", lines("a\nb\nc\n"), "--partition", "2").status == 0
    first = replicas(run, "wider")
    assert [len(each) for each in first] == [1, 1, 1, 1]
    altered = run("topic", "alter", "wider", "--replication-factor", "3", "--partitions", "6")
    assert altered == (0, "altered: wider (6 partitions, 3 replicas of each partition)\n", "")
    assert [sorted(each) for each in replicas(run, "wider")] == [[1, 2, 3]] * 6
    assert [each[0] for each in replicas(run, "wider")[:4]] == [each[0] for each in first]
    told = as_json(run("topic", "alter", "wider", "--replication-factor", "2", "--json"))
    assert (told["replication_factor"], told["moving"]) == (2, 0)
    assert [len(each) for each in replicas(run, "wider")] == [2] * 6
    # 12 replicas on three nodes.
    assert sorted(Counter(node for each in replicas(run, "wider") for node in each).values()) == [4, 4, 4]
    assert run("consume", "wider") == (0, "a\nb\nc\n", "")


def test_a_replication_factor_that_cannot_be_is_refused_and_nothing_is_done(run: Run) -> None:
    run("topic", "create", "stays", "--replication-factor", "2", "--config", "min.insync.replicas=2")
    before = run("topic", "describe", "stays").out
    for factor, status, cause in (
        ("4", 1, "cannot have 4 replicas of each partition: 3 nodes are alive; ask for no more"),
        ("0", 2, "should be greater than or equal to 1"),
        ("1", 1, "min.insync.replicas is 2"),
    ):
        refused = run(
            "topic", "alter", "stays", "--replication-factor", factor, "--config", "retention.ms=77000"
        )
        assert (refused.status, refused.out) == (status, "")
        assert cause in refused.err
    assert run("topic", "describe", "stays").out == before
    both = run("topic", "alter", "stays", "--replication-factor", "3", "--partitions", "1")
    assert "already has 1 partition(s)" in both.err
    wrong = run("topic", "alter", "stays", "--replication-factor", "3", "--config", "nonsense=1")
    assert wrong.status == 1
    assert run("topic", "describe", "stays").out == before


def test_a_topic_is_trimmed(run: Run, lines: Callable[[str], str]) -> None:
    run("topic", "create", "old-ones")
    run("produce", "old-ones", "--file", lines("a\nb\nc\nd\n"))
    would = as_json(run("topic", "trim", "old-ones", "--before", "3", "--dry-run", "--json"))
    assert would["partitions"] == [{"partition": 0, "start_offset": 3, "gone": 3}]
    assert run("consume", "old-ones").out == "a\nb\nc\nd\n"
    assert "begins at" in run("topic", "trim", "old-ones", "--before", "3").out
    assert run("consume", "old-ones").out == "d\n"
    assert as_json(run("topic", "trim", "old-ones", "--before", "1", "--json"))["partitions"] == [
        {"partition": 0, "start_offset": 3, "gone": 0}
    ]
    run("topic", "trim", "old-ones", "--before", "end")
    assert run("consume", "old-ones").out == ""
    assert run("topic", "trim", "old-ones", "--before", "yesterday").status == 2


def test_what_became_of_each_record_is_told(run: Run, lines: Callable[[str], str]) -> None:
    run("topic", "create", "narrow")
    text = "one\n" + "x" * 2_000_000 + "\nthree\n"  # too large for a batch with the others
    done = run("produce", "narrow", "--file", lines(text))
    assert (done.status, done.out, done.err.count("\n")) == (1, "", 1)
    assert "2 of 3 records acknowledged, 1 refused; line 2 failed: " in done.err
    assert run("consume", "narrow").out == "one\nthree\n"
    plain = run("produce", "narrow", "--file", lines(text), "--json")
    assert plain.status == 1
    told = json.loads(plain.out)
    assert (told["records"], told["refused"], told["unknown"]) == (2, 1, 0)


def test_keys_headers_and_tombstones_there_and_back(run: Run, lines: Callable[[str], str]) -> None:
    for topic in ("whole", "copy"):
        run("topic", "create", topic)
    run("produce", "whole", "-k", "anna", "-H", "from=shop", "-H", "empty=", "--file", lines("one\n"))
    run("produce", "whole", "--tombstone", "-k", "anna")
    run("produce", "whole", "--tombstone", "--file", lines("bert\ncarl\n"))
    (first, *_) = full = run("consume", "whole", "--format", "full").out.splitlines()
    assert first.startswith("0:0 20")
    assert first.endswith(" anna one from=shop empty=")
    assert [line.split(" ", 2)[2] for line in full[1:]] == ["anna -", "bert -", "carl -"]
    source = run("consume", "whole", "--format", "json").out
    run("produce", "copy", "--format", "json", "--file", lines(source))
    copied = [json.loads(line) for line in run("consume", "copy", "--format", "json").out.splitlines()]
    for row in (originals := [json.loads(line) for line in source.splitlines()]):
        row["topic"] = "copy"
    assert [row | {"leader_epoch": 0} for row in copied] == [row | {"leader_epoch": 0} for row in originals]


def test_a_group_goes_on_where_it_was(run: Run, lines: Callable[[str], str]) -> None:
    run("topic", "create", "shared", "--partitions", "2")
    run("produce", "shared", "--file", lines("".join(f"{number}\n" for number in range(50))))
    first = run("consume", "shared", "--group", "readers", "--max", "20").out.split()
    rest = run("consume", "shared", "--group", "readers").out.split()
    assert len(first) == 20
    assert sorted(map(int, first + rest)) == list(range(50))
    assert run("consume", "shared", "--group", "readers").out == ""
    late = run("consume", "shared", "--group", "late", "--from", "end", "--follow", "--timeout", "5")
    assert (late.status, late.out, late.err) == (0, "", "")
    for wrong in (["--partition", "0"], ["--from", "7"]):
        assert run("consume", "shared", "--group", "readers", *wrong).status == 2
    assert run("consume", "no-such", "--group", "readers").status == 1


def test_places_and_bounds(run: Run, lines: Callable[[str], str]) -> None:
    run("topic", "create", "numbers")
    began = time.time()
    run("produce", "numbers", "--file", lines("".join(f"{number}\n" for number in range(100))))
    assert run("consume", "numbers", "--from", "97").out == "97\n98\n99\n"
    assert run("consume", "numbers", "--max", "2").out == "0\n1\n"
    assert run("consume", "numbers", "--from", "end").out == ""
    assert run("consume", "numbers", "--from", "1h").out.count("\n") == 100
    assert run("consume", "numbers", "--partition", "0", "--from", "98", "--max", "1").out == "98\n"
    (record,) = run("consume", "numbers", "--from", "5", "--max", "1", "--json").out.splitlines()
    plain = json.loads(record)
    assert (plain["offset"], plain["key"], plain["value"]) == (5, None, "5")
    assert began - 5 < plain["timestamp_ms"] / 1000 < time.time() + 5
    missing = run("consume", "numbers", "--partition", "4")
    assert (missing.status, missing.out) == (2, "")
    assert missing.err == "strandline: topic numbers has no partition 4; it has 0 to 0\n"
    beyond = run("consume", "numbers", "--from", "500")
    assert (beyond.status, beyond.out) == (0, "")


def test_mistakes_are_told_in_one_line(run: Run, lines: Callable[[str], str], tmp_path: Path) -> None:
    run("topic", "create", "mistakes")
    keyless = run("produce", "mistakes", "--file", lines("a,1\nb\n"), "--key-separator", ",")
    assert (keyless.status, keyless.out) == (2, "")
    assert keyless.err == (
        "strandline: line 2 has no key separator; 1 of 1 record acknowledged;"
        " correct the line, or leave --key-separator out\n"
    )
    assert "cannot be read" in run("produce", "mistakes", "--file", str(tmp_path / "none")).err
    assert run("produce", "mistakes", "--compression", "rar", "--file", lines("a\n")).status == 2
    assert run("consume", "mistakes", "--format", "xml").status == 2
    assert run("checkpoint", "no-such-topic").err.count("\n") == 1


def test_nobody_there(run: Run, lines: Callable[[str], str]) -> None:
    nobody = f"127.0.0.1:{free_ports([1])[1].kafka}"
    told = (
        1, "",
        f"strandline: no Kafka broker answers at {nobody}; start a cluster with `strandline cluster up`,"
        " or name one with --bootstrap or --cluster\n",
    )  # fmt: skip
    assert run("topic", "list", "--bootstrap", nobody, here=False) == told
    assert run("consume", "x", "--bootstrap", nobody, here=False) == told
    file = lines("a\n")
    assert run("produce", "x", "--file", file, "--timeout", "1", "--bootstrap", nobody, here=False) == told


def test_a_reader_that_goes_away_ends_it_without_a_word(
    run: Run, cluster: RealCluster, lines: Callable[[str], str]
) -> None:
    run("topic", "create", "long")
    run("produce", "long", "--file", lines("x" * 100 + "\n" + ("x" * 100 + "\n") * 20_000))
    done = subprocess.run(
        f"{STRANDLINE} consume long --cluster {cluster.folder} | head -n 1; echo ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.stdout == "x" * 100 + "\n141\n"
    assert done.stderr == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_following_ends_with_ctrl_c(
    run: Run, cluster: RealCluster, lines: Callable[[str], str], number: signal.Signals
) -> None:
    topic = f"follow-{number}"
    run("topic", "create", topic)
    command = [str(STRANDLINE), "consume", topic, "--follow", "--cluster", str(cluster.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        try:
            run("produce", topic, "--file", lines("one\n"))
            assert reader.stdout.readline() == "one\n"
            run("produce", topic, "--file", lines("two\n"))
            assert reader.stdout.readline() == "two\n"
            reader.send_signal(number)
            assert reader.wait(60) == (130 if number == signal.SIGINT else -signal.SIGTERM)
            assert reader.stderr.read() == ""
        finally:
            reader.kill()


def test_checkpoint(run: Run, tmp_path: Path) -> None:
    run("topic", "create", "kept", "--partitions", "2")
    report = as_json(run("checkpoint", "kept", "--json"))
    assert report["complete"]
    assert [(part["topic"], part["partition"]) for part in report["checkpoints"]] == [
        ("kept", 0), ("kept", 1), (None, None)
    ]  # fmt: skip
    assert run("checkpoint", "kept").out == "checkpoint of 3 groups: 9 documents published\n"
    taken = tmp_path / "taken.json"
    taken.write_text(json.dumps(report))
    assert run("checkpoint", "--renew", str(taken), "--lease", "7200").out == "renewed: 2 leases\n"
    renewed = as_json(run("checkpoint", "--renew", str(taken), "--json"))["checkpoints"]
    assert [lease["index"] for lease in renewed] == [part["index"] for part in report["checkpoints"][:2]]
    report["checkpoints"][0]["index"] += 1_000_000
    taken.write_text(json.dumps(report))
    ended = run("checkpoint", "--renew", str(taken))
    assert (ended.status, ended.err.count("\n")) == (1, 1)
    assert "1 of 2 leases not renewed" in ended.err
    taken.write_text("[]")
    for arguments in (["--renew", str(taken)], ["kept", "--renew", str(taken)], ["--renew", "/none"]):
        refused = run("checkpoint", *arguments)
        assert (refused.status, refused.err.count("\n")) == (2, 1)


def test_collecting_is_seen_paused_and_resumed(run: Run, lines: Callable[[str], str]) -> None:
    run("topic", "create", "collected", "--partitions", "2")
    run("produce", "collected", "--file", lines("one\ntwo\n"))

    def states() -> list[bool]:
        return [node["collector"]["paused"] for node in as_json(run("gc", "status", "--json"))["nodes"]]

    def becomes(paused: bool) -> None:
        end = time.monotonic() + 10
        while states() != [paused] * 3:
            assert time.monotonic() < end, states()

    status = as_json(run("gc", "status", "--all", "--json"))
    assert status["problems"] == []
    rows = [row["partition"] for row in status["partitions"] if row["topic"] == "collected"]
    assert sorted(rows) == [0, 1]
    assert 0 <= status["max_collectable_epoch"] < status["cluster_epoch"]
    assert status["held_back"] is None or status["held_back"]["reason"] in REASONS
    assert run("gc", "pause").out == "paused: no node deletes records from storage\n"
    becomes(True)
    assert "PAUSED" in run("gc", "status").out
    assert run("gc", "resume").out == "resumed: all nodes collect\n"
    becomes(False)
    assert run("gc", "reset").out == "reset: node 1, 2, 3\n"
    would_go = as_json(run("gc", "dry-run", "--json"))["nodes"]
    assert [node["node"] for node in would_go] == [1, 2, 3]


def test_a_cluster_that_loses_a_node_goes_on(run: Run, lines: Callable[[str], str]) -> None:
    run("topic", "create", "survives")
    assert as_json(run("cluster", "up", "--json"))["started"] == []
    assert run("cluster", "up").out.startswith("already up: 3 nodes at 127.0.0.1:")
    assert run("cluster", "kill", "2").out.startswith("killed: node 2 (pid ")
    status = run("cluster", "status", "--json")
    assert status.status == 1
    assert [node["pid"] is None for node in json.loads(status.out)["nodes"]] == [False, True, False]
    assert run("produce", "survives", "--file", lines("still here\n")).status == 0
    assert run("consume", "survives").out == "still here\n"
    assert run("cluster", "start", "2").out.startswith("started: node 2 (pid ")
    assert run("cluster", "start", "2").out.startswith("already up: node 2 (pid ")
    healthy = run("cluster", "status")
    assert healthy.status == 0
    assert healthy.out.count(" healthy") == 3


def test_the_status_of_nodes_that_are_known_by_their_addresses(run: Run, cluster: RealCluster) -> None:
    addresses = cluster.admin
    whole = run("cluster", "status", "--admin", ",".join(addresses), here=False)
    assert (whole.status, whole.out.count(" healthy")) == (0, 3)
    assert cluster.description.cluster in whole.out
    one = run("cluster", "status", "--admin", f"http://{addresses[0]}/", "--json", here=False)
    rows = as_json(one)["nodes"]
    assert [(row["node"], row["admin"], row["problem"]) for row in rows] == [
        (1, addresses[0], None), (2, None, None), (3, None, None)
    ]  # fmt: skip
    assert [row["kafka"] for row in rows] == cluster.bootstrap.split(",")
    nobody = f"127.0.0.1:{free_ports([1])[1].admin}"
    partly = run("cluster", "status", "--admin", f"{addresses[0]},{nobody}", here=False)
    assert partly.status == 1
    _, title, *rows = partly.out.splitlines()
    assert max(map(len, rows[: len(addresses) + 1])) <= len(title) + 4, "a long reason widens no row"
    assert rows[-1].startswith(f"?: no answer at http://{nobody}/health")
    none = run("cluster", "status", "--admin", nobody, here=False)
    assert (none.status, none.out, none.err.count("\n")) == (1, "", 1)


def test_logs_and_a_rolling_restart(run: Run, cluster: RealCluster, lines: Callable[[str], str]) -> None:
    before = cluster.pids
    assert run("cluster", "restart").out.count("restarted: node ") == 3
    assert not set(before.values()) & set(cluster.pids.values())
    assert run("cluster", "status").out.count(" healthy") == 3
    shown = run("cluster", "logs", "-n", "3")
    assert [line.split(":")[0] for line in shown.out.splitlines()] == [
        f"node {node}" for node in (1, 2, 3) for _ in range(3)
    ]
    assert "node 2" not in run("cluster", "logs", "2", "-n", "1").out.split(":")[0]
    assert run("cluster", "logs", "9").status == 2


def test_one_node_in_the_foreground(tmp_path: Path) -> None:
    done = subprocess.run(
        [STRANDLINE, "node", "--config", str(tmp_path / "none.toml")],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "none.toml" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["cluster", "up"], ["cluster", "status"], ["cluster", "down"], ["cluster", "start"],
        ["cluster", "kill"], ["cluster", "stop"], ["cluster", "restart"], ["cluster", "logs"], ["node"],
        ["topic", "create"], ["topic", "list"], ["topic", "describe"], ["topic", "alter"], ["topic", "trim"],
        ["topic", "delete"], ["group", "list"], ["group", "describe"], ["group", "delete"],
        ["group", "reset-offsets"], ["transaction", "list"], ["transaction", "describe"],
        ["transaction", "abort"], ["version"], ["produce"], ["consume"],
        ["checkpoint"], ["audit"], ["gc", "status"], ["gc", "pause"], ["gc", "resume"], ["gc", "reset"],
        ["gc", "dry-run"],
    ],
)  # fmt: skip
def test_help_shows_an_example_and_json(run: Run, command: list[str]) -> None:
    done = run(*command, "--help", here=False)
    assert done.status == 0
    assert f"strandline {' '.join(command)}" in done.out.partition("Example")[2]
    assert "--json" in done.out
