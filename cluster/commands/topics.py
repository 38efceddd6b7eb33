"""`strandline topic`: topics by way of Kafka's own admin requests, so it works with any Kafka as well."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from strandline.cluster.commands.consume import WHERE, parse_start
from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.output import Json, escaped, plural, progress, show, table
from strandline.cluster.target import Bootstrap, Cluster, target

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluent_kafka import Node

    from strandline.cluster.kafka_client import TopicAdmin

MOVED_SECONDS: Final = 600.0

app = typer.Typer(help="Create, list, describe, alter, trim and delete topics.")

Name = Annotated[str, typer.Argument(metavar="TOPIC")]
Names = Annotated[list[str], typer.Argument(metavar="TOPIC...")]
Config = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="Topic configuration, by Kafka's name.")
]


@app.command()
def create(
    names: Names,
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions.")] = 1,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, help="Replicas of each partition. Default: the cluster's.")
    ] = None,
    config: Config = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Do not fail if the topic exists.")
    ] = False,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Create topics, all with the same number of partitions and configuration.

    \b
    Examples:
      strandline topic create orders --partitions 6
      strandline topic create events clicks --config retention.ms=86400000 --config max.message.bytes=4194304
    """
    from confluent_kafka.cimpl import NewTopic

    from strandline.cluster.kafka_client import refused

    configs = _configs(config)
    topics = _topics(bootstrap, cluster)
    names = list(dict.fromkeys(names))
    there = topics.names() if if_not_exists else {}
    wanted = [name for name in names if name not in there]
    # -1: the broker's default.
    replicas = -1 if replication_factor is None else replication_factor

    def request() -> Mapping[str, Future[Any]]:
        new = [NewTopic(name, partitions, replicas, config=configs) for name in wanted]
        return topics.admin.create_topics(new) if new else {}

    futures = refused(topics.where, f"topic {', '.join(wanted)} cannot be created", request)
    done, errors = _results(topics, "created", futures)
    rows = [
        {"topic": name, "created": name in done, "partitions": partitions}
        for name in names
        if name in done or name in there
    ]
    said = [f"{'created' if row['created'] else 'exists'}: {row['topic']}" for row in rows]
    if rows:
        show(as_json, {"topics": rows}, "\n".join(said))
    _raise(errors)


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
    """Show a topic's partitions, their replicas, and its configuration.

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
    show(as_json, plain, [escaped(head), listed])


@app.command()
def alter(
    name: Name,
    config: Config = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY", help="Configuration to set back to the cluster's default; may be repeated."
        ),
    ] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="New number of partitions; it can only grow.")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, help="New number of replicas of each partition.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait until replicas have moved (0: do not wait).", min=0.0)
    ] = MOVED_SECONDS,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Change a topic's configuration, its replication factor, or add partitions.

    All of it is checked first, and nothing is done if a part is refused. New partitions change where keys go:
    records of one key, older and newer, may be in two partitions. New replicas go to racks that have none of
    the partition first; it is safe to repeat, and goes on without this command.

    \b
    Examples:
      strandline topic alter orders --config retention.ms=604800000 --unset retention.bytes
      strandline topic alter orders --partitions 12
      strandline topic alter orders --replication-factor 3
    """
    from strandline.cluster.replication_factor import factor_change

    configs = _configs(config)
    both = configs.keys() & set(unset or ())
    if both:
        raise CommandFailed(f"{min(both)} is both set and unset", "leave one of the options out", MISUSED)
    if not configs and not unset and partitions is None and replication_factor is None:
        cure = "give --config, --unset, --partitions or --replication-factor"
        raise CommandFailed("there is nothing to change", cure, MISUSED)
    topics = _topics(bootstrap, cluster)
    present = len(topics.describe(name).partitions)
    said, left = [], 0
    with factor_change(topics.where, name, replication_factor) as change:
        if configs or unset:
            topics.configure(name, configs, unset or (), dry_run=True)
        if partitions is not None:
            topics.add_partitions(name, partitions, dry_run=True)
        if change is not None:
            set_here = topics.configs(name)
            kept = {key: value for key, value in set_here.items() if value and key not in (unset or ())}
            change.check({**kept, **configs})
        if configs or unset:
            topics.configure(name, configs, unset or ())
            said += [f"{key}={value}" for key, value in configs.items()]
            said += [f"{key}: default" for key in unset or ()]
        if partitions is not None:
            topics.add_partitions(name, partitions)
            said.append(plural(partitions, "partition"))
        if change is not None:
            change.begin()
            with progress(as_json) as say:
                left = change.wait(partitions or present, timeout, say)
            said.append(f"{plural(replication_factor or 0, 'replica')} of each partition")
    if left and timeout:
        raise CommandFailed(
            f"{left} partitions of topic {name} still move after {timeout:g} s",
            "it goes on by itself: see `strandline topic describe` and the nodes' logs",
        )
    plain = {
        "topic": name,
        "set": configs,
        "unset": unset or [],
        "partitions": partitions,
        "replication_factor": replication_factor,
        "moving": left,
    }
    moving = f"; {plural(left, 'partition')} still to move" if left else ""
    show(as_json, plain, f"altered: {name} ({', '.join(said)}){moving}")


@app.command()
def trim(
    name: Name,
    before: Annotated[str, typer.Option("--before", metavar="WHERE", help=WHERE)],
    partitions: Annotated[
        list[int] | None,
        typer.Option("--partition", min=0, help="Only this partition; may be repeated. Default: all."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Delete a topic's oldest records, up to an offset or time, for good (Kafka's DeleteRecords).

    \b
    Examples:
      strandline topic trim orders --before 7d --dry-run
      strandline topic trim orders --before 1200 --partition 2
    """
    from strandline.cluster.group_client import Groups

    start = parse_start(before, time.time())
    where = target(bootstrap=bootstrap, folder=cluster)
    groups = Groups(where)
    places = groups.places([name], partitions)
    first = groups.found(places, ("beginning", 0))
    ends = groups.found(places, start)
    if not dry_run:
        groups.trim(name, {place: end for place, end in ends.items() if end > first[place]})
    rows = [
        {
            "partition": place.partition,
            "start_offset": max(end, first[place]),
            "gone": max(end - first[place], 0),
        }
        for place, end in ends.items()
    ]
    head = f"{name} {'would begin' if dry_run else 'begins'} at:"
    listed = table(
        ("PARTITION", "OFFSET", "OFFSETS GONE"), [tuple(row.values()) for row in rows], right=(0, 1, 2)
    )
    show(as_json, {"topic": name, "dry_run": dry_run, "partitions": rows}, [escaped(head), listed])


@app.command()
def delete(
    names: Names,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Delete topics and all their records, at once and for good. A failure does not stop the others.

    \b
    Example:
      strandline topic delete orders
    """
    from strandline.cluster.kafka_client import refused

    topics = _topics(bootstrap, cluster)
    names = list(dict.fromkeys(names))
    futures = refused(
        topics.where, f"topic {', '.join(names)} cannot be deleted", lambda: topics.admin.delete_topics(names)
    )
    done, errors = _results(topics, "deleted", futures)
    if done:
        show(as_json, {"deleted": done}, f"deleted: {', '.join(done)}")
    _raise(errors)


def _results(
    topics: TopicAdmin, verb: str, futures: Mapping[str, Future[Any]]
) -> tuple[list[str], list[CommandFailed]]:
    """The topics of which it was done, and why it was not of the others."""
    done, errors = [], []
    for name, future in futures.items():
        try:
            topics.result(f"topic {name} cannot be {verb}", future, topic=name)
            done.append(name)
        except CommandFailed as error:
            errors.append(error)
    return done, errors


def _raise(errors: list[CommandFailed]) -> None:
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise CommandFailed(
            ". ".join(error.cause for error in errors), "what else was asked for is done; correct these"
        )


def _leader(node: Node | None) -> int | None:
    return None if node is None or node.id < 0 else node.id


def _topics(bootstrap: str | None, cluster: Cluster) -> TopicAdmin:
    from strandline.cluster.kafka_client import TopicAdmin

    return TopicAdmin(target(bootstrap=bootstrap, folder=cluster))


def _configs(pairs: list[str] | None) -> dict[str, str]:
    found = {}
    for text in pairs or ():
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise CommandFailed(f"--config {text} has no key and value", "write --config KEY=VALUE", MISUSED)
        found[key.strip()] = value
    return found


def _ids(nodes: object) -> str:
    assert isinstance(nodes, list)
    return ",".join(map(str, nodes))
