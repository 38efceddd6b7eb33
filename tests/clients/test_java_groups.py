"""Groups and transactions by Kafka's own tools: what they print, and that they complain of nothing."""

from __future__ import annotations

import json
import uuid
from typing import Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from tests.clients.records import read_by_librdkafka
from tests.peers.kafka_tools import TOOLS, KafkaTools, Ran, Run, ran

GROUPS: Final = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
CONSUMER: Final = f"{TOOLS}.consumer.ConsoleConsumer"
COUNT: Final = 40


def fresh(what: str) -> str:
    return f"{what}-{uuid.uuid4().hex[:8]}"


def made(tools: KafkaTools, partitions: int, *topics: str) -> None:
    """Topics, the first of which holds COUNT lines."""
    count = ("--partitions", str(partitions))
    for one in tools.together([tools.topics("--create", "--topic", topic, *count) for topic in topics]):
        ran(one)
    lines = "".join(f"{number}|line {number}\n" for number in range(COUNT))
    keyed = ("--property", "parse.key=true", "--property", "key.separator=|")
    done = tools.run(tools.tool(f"{TOOLS}.ConsoleProducer", "--topic", topics[0], *keyed, stdin=lines))
    assert (done.code, done.err) == (0, "")


def rows(done: Ran) -> list[dict[str, str]]:
    """The lines of a table by the words of its first."""
    lines = [line.split() for line in done.lines if line.strip()]
    return [dict(zip(lines[0], line, strict=False)) for line in lines[1:]]


def transactions(tools: KafkaTools, *arguments: str) -> Run:
    """The tool that takes the address before its subcommand."""
    return Run(f"{TOOLS}.TransactionsCommand", ("--bootstrap-server", tools.bootstrap, *arguments))


def events(done: Ran) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.lines]


def test_console_consumer_and_consumer_groups(tools: KafkaTools) -> None:
    topic, group = fresh("java-group"), fresh("java-group")
    made(tools, 3, topic)
    reads = ("--topic", topic, "--group", group, "--from-beginning", "--max-messages", str(COUNT))
    read = tools.run(tools.tool(CONSUMER, *reads))
    # It says how many it has read, and its close commits them.
    assert (read.code, read.err) == (0, f"Processed a total of {COUNT} messages\n")
    assert sorted(read.lines) == sorted(f"line {number}" for number in range(COUNT))
    of = ("--group", group)
    listed, described, state, moved = tools.together(
        [
            tools.tool(GROUPS, "--list", "--state"),
            tools.tool(GROUPS, "--describe", *of),
            tools.tool(GROUPS, "--describe", *of, "--state"),
            tools.tool(GROUPS, "--reset-offsets", *of, "--to-earliest", "--topic", topic, "--dry-run"),
        ]
    )
    assert [group, "Empty"] in [line.split() for line in listed.lines]
    lags = [(row["TOPIC"], row["LAG"]) for row in rows(described)]
    assert lags == [(topic, "0")] * 3
    assert [(row["STATE"], row["#MEMBERS"]) for row in _state(state)] == [("Empty", "0")]
    assert [row["NEW-OFFSET"] for row in rows(moved)] == ["0"] * 3
    ends = offsets(tools, group)
    assert sum(ends.values()) == COUNT
    reset = tools.tool(GROUPS, "--reset-offsets", *of, "--shift-by", "-2", "--topic", topic, "--execute")
    assert len(rows(tools.run(reset))) == 3
    assert offsets(tools, group) == {number: end - 2 for number, end in ends.items()}
    dropped = tools.run(tools.tool(GROUPS, "--delete-offsets", *of, "--topic", f"{topic}:0"))
    assert "Request succeeded" in dropped.out, dropped
    assert sorted(offsets(tools, group)) == [1, 2]
    deleted = tools.run(tools.tool(GROUPS, "--delete", *of))
    assert f"Deletion of requested consumer groups ('{group}') was successful." in deleted.out, deleted
    admin = AdminClient({"bootstrap.servers": tools.bootstrap})  # A client that is gone answers no more.
    groups = admin.list_consumer_groups().result(60).valid
    assert group not in {one.group_id for one in groups}


def offsets(tools: KafkaTools, group: str) -> dict[int, int]:
    """What a group of one topic has committed, by partition; asked by librdkafka."""
    admin = AdminClient({"bootstrap.servers": tools.bootstrap})
    asked = [ConsumerGroupTopicPartitions(group)]
    found = admin.list_consumer_group_offsets(asked)[group].result(60).topic_partitions
    return {one.partition: one.offset for one in found}


def _state(done: Ran) -> list[dict[str, str]]:
    """The coordinator's column has a blank in it, the last two have none."""
    lines = [line.split() for line in done.lines if line.strip()]
    return [dict(zip(("STATE", "#MEMBERS"), line[-2:], strict=True)) for line in lines[1:]]


def test_verifiable_consumers(tools: KafkaTools) -> None:
    """Of the classic protocol, and of the one in which the broker assigns."""
    topic = fresh("java-verifiable")
    made(tools, 2, topic)
    wanted = ("--topic", topic, "--max-messages", str(COUNT), "--reset-policy", "earliest")
    verifiable = f"{TOOLS}.VerifiableConsumer"
    for done in tools.together(
        [
            tools.tool(verifiable, *wanted, "--group-id", fresh("classic"), "--session-timeout", "6000"),
            tools.tool(verifiable, *wanted, "--group-id", fresh("consumer"), "--group-protocol", "consumer"),
        ]
    ):
        assert done.code == 0, done
        told = events(done)
        assigned = [one["partitions"] for one in told if one["name"] == "partitions_assigned"]
        assert sum(map(len, assigned)) == 2, told
        assert sum(one["count"] for one in told if one["name"] == "records_consumed") == COUNT
        commits = [one for one in told if one["name"] == "offsets_committed"]
        assert commits
        assert all(one["success"] for one in commits)
        assert told[-1]["name"] == "shutdown_complete"


def test_a_group_s_configs_by_kafka_configs(tools: KafkaTools) -> None:
    """Through one node, and told by whichever is asked next."""
    group = fresh("java-config")
    of = ("--entity-type", "groups", "--entity-name", group)
    wanted = "consumer.session.timeout.ms=50000,consumer.heartbeat.interval.ms=7000"
    ran(tools.run(tools.configs("--alter", *of, "--add-config", wanted)))
    short = tools.configs("--alter", *of, "--add-config", "consumer.session.timeout.ms=1000")
    refused = tools.run(short)
    assert "greater than or equal to group.consumer.min.session.timeout.ms" in refused.err
    told = " ".join(ran(tools.run(tools.configs("--describe", *of))))
    assert f"Dynamic configs for group {group} are:" in told
    assert "consumer.session.timeout.ms=50000" in told
    assert "consumer.heartbeat.interval.ms=7000" in told


def test_transactional_message_copier_and_transactions(tools: KafkaTools) -> None:
    """Kafka's own consume-transform-produce program, which aborts at random."""
    source, target, group, id = fresh("java-in"), fresh("java-out"), fresh("java-copy"), fresh("java-copy")
    made(tools, 1, source, target)
    copied = tools.run(
        Run(
            f"{TOOLS}.TransactionalMessageCopier",
            (
                *("--broker-list", tools.bootstrap, "--transactional-id", id, "--consumer-group", group),
                *("--input-topic", source, "--input-partition", "0", "--output-topic", target),
                *("--transaction-size", "7", "--enable-random-aborts", "--use-group-metadata"),
            ),
        )
    )
    assert copied.code == 0, copied
    # By librdkafka, in a reader of committed records.
    got = read_by_librdkafka(tools.bootstrap, target, COUNT, partitions=1)
    lines = [bytes(message.value() or b"").decode() for message in got.values()]
    assert sorted(lines) == sorted(f"line {number}" for number in range(COUNT))
    listed, described, producers, hanging, lag = tools.together(
        [
            transactions(tools, "list"),
            transactions(tools, "describe", "--transactional-id", id),
            transactions(tools, "describe-producers", "--topic", target, "--partition", "0"),
            transactions(tools, "find-hanging", "--topic", target, "--partition", "0"),
            tools.tool(GROUPS, "--describe", "--group", group),
        ]
    )
    assert (listed.code, listed.err) == (0, ""), listed
    (state,) = [row["TransactionState"] for row in rows(listed) if row["TransactionalId"] == id]
    assert state in {"CompleteCommit", "CompleteAbort"}
    assert [row["TransactionState"] for row in rows(described)] == [state]
    (producer,) = rows(producers)
    assert producer["CurrentTransactionStartOffset"] == "None"
    assert rows(hanging) == []
    assert [row["LAG"] for row in rows(lag)] == ["0"]
    # Whichever broker leads, each tells of its replica; and all of a broker's partitions may be looked at,
    # those of internal topics included.
    of = ("describe-producers", "--topic", target, "--partition", "0", "--broker-id")
    told = tools.together(
        [transactions(tools, *of, broker) for broker in "123"]
        + [transactions(tools, "find-hanging", "--broker-id", broker) for broker in "123"]
        + [tools.tool(f"{TOOLS}.GetOffsetShell", "--topic-partitions", "__consumer_offsets:0-2")]
    )
    assert [(one.code, one.err) for one in told] == [(0, "")] * 7, told
    assert {rows(one)[0]["ProducerId"] for one in told[:3]} == {producer["ProducerId"]}
    assert [rows(one) for one in told[3:6]] == [[]] * 3
    assert told[6].lines == ["__consumer_offsets:0:0", "__consumer_offsets:1:0"]
