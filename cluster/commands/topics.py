"""`strandline topic`: topics by way of Kafka's own admin requests, so it works with any Kafka as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group

from cluster.failure import MISUSED, CommandFailed
from cluster.output import Json, escaped, plural, show, table
from cluster.target import Bootstrap, Cluster, target

if TYPE_CHECKING:
    from confluent_kafka import Node

    from cluster.kafka_client import Topics

app = typer.Typer(help="Create, list, describe and delete topics.")

Name = Annotated[str, typer.Argument(metavar="TOPIC")]


@app.command()
def create(
    name: Name,
    partitions: Annotated[int, typer.Option(min=1, help="How many.")] = 1,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, help="Replicas of each. Default: as the cluster is configured.")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Of the topic, by Kafka's name.")
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Else that is an error.")] = False,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Create a topic.

    \b
    Examples:
      strandline topic create orders --partitions 6
      strandline topic create events --config retention.ms=86400000 --config max.message.bytes=4194304
    """
    from confluent_kafka.cimpl import NewTopic

    configs = dict(_pair(each) for each in config or ())
    topics = _topics(bootstrap, cluster)
    existed = if_not_exists and name in topics.names()
    if not existed:
        # -1: the broker's default.
        new = NewTopic(
            name, partitions, -1 if replication_factor is None else replication_factor, config=configs
        )
        topics.result(f"topic {name} cannot be created", topics.admin.create_topics([new])[name])
    plain = {"topic": name, "created": not existed, "partitions": partitions}
    show(as_json, plain, f"{'exists' if existed else 'created'}: {name}")


@app.command("list")
def list_topics(bootstrap: Bootstrap = None, cluster: Cluster = None, as_json: Json = False) -> None:
    """List all topics.

    \b
    Example:
      strandline topic list --json
    """
    names = _topics(bootstrap, cluster).names()
    plain = {
        "topics": [
            {"topic": name, "partitions": partitions, "replication_factor": replicas}
            for name, (partitions, replicas) in names.items()
        ]
    }
    if not names and not as_json:
        show(False, None, "no topics")
        return
    rows = [(name, *counts) for name, counts in names.items()]
    show(as_json, plain, table(("TOPIC", "PARTITIONS", "REPLICAS"), rows, right=(1, 2)))


@app.command()
def describe(name: Name, bootstrap: Bootstrap = None, cluster: Cluster = None, as_json: Json = False) -> None:
    """Show a topic's partitions, where they live, and what is configured for it.

    \b
    Example:
      strandline topic describe orders
    """
    topics = _topics(bootstrap, cluster)
    found = topics.describe(name)
    configs = topics.configs(name)
    partitions = [
        {
            "partition": each.id,
            "leader": _leader(each.leader),
            "replicas": [node.id for node in each.replicas],
            "in_sync": [node.id for node in each.isr],
        }
        for each in found.partitions
    ]
    plain = {"topic": name, "id": str(found.topic_id), "configs": configs, "partitions": partitions}
    set_here = ", ".join(f"{key}={value}" for key, value in configs.items()) or "defaults"
    rows = [
        (each["partition"], each["leader"], _ids(each["replicas"]), _ids(each["in_sync"]))
        for each in partitions
    ]
    listed = table(("PARTITION", "LEADER", "REPLICAS", "IN SYNC"), rows, right=(0, 1))
    head = f"{name}: {plural(len(rows), 'partition')}, id {found.topic_id}, {set_here}"
    show(as_json, plain, Group(escaped(head), listed))


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC...")],
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Delete topics and all their records, at once and for good.

    \b
    Example:
      strandline topic delete orders
    """
    topics = _topics(bootstrap, cluster)
    for name, future in topics.admin.delete_topics(names).items():
        topics.result(f"topic {name} cannot be deleted", future)
    show(as_json, {"deleted": names}, f"deleted: {', '.join(names)}")


def _leader(node: Node | None) -> int | None:
    return None if node is None or node.id < 0 else node.id


def _topics(bootstrap: str | None, cluster: Cluster) -> Topics:
    from cluster.kafka_client import Topics

    return Topics(target(bootstrap=bootstrap, folder=cluster).bootstrap)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise CommandFailed(f"--config {text} has no key and value", "write --config KEY=VALUE", MISUSED)
    return key, value


def _ids(nodes: object) -> str:
    assert isinstance(nodes, list)
    return ",".join(map(str, nodes))
