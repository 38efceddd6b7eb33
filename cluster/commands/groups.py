"""`strandline group`: consumer groups by Kafka's own admin requests, so it works with any Kafka as well."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cluster.commands.consume import parse_start
from strandline.cluster.failure import CommandFailed
from strandline.cluster.output import Json, escaped, plural, show, table
from strandline.cluster.target import Bootstrap, Cluster, target

if TYPE_CHECKING:
    from strandline.cluster.group_client import Groups, Position

app = typer.Typer(help="List, describe and delete consumer groups, and reset their offsets.")

Name = Annotated[str, typer.Argument(metavar="GROUP")]


@app.command("list")
def list_groups(bootstrap: Bootstrap = None, cluster: Cluster = None, as_json: Json = False) -> None:
    """List all groups of both protocols, with or without members.

    \b
    Example:
      strandline group list --json
    """
    groups = _groups(bootstrap, cluster).all()
    plain = {"groups": [group._asdict() for group in groups]}
    if not groups and not as_json:
        show(False, None, "no groups")
        return
    show(as_json, plain, table(("GROUP", "PROTOCOL", "STATE"), [tuple(group) for group in groups]))


@app.command()
def describe(name: Name, bootstrap: Bootstrap = None, cluster: Cluster = None, as_json: Json = False) -> None:
    """Show a group's members with their protocols, and its offset and lag in each partition.

    The end is what a consumer of committed records is given; a lag counts offsets, not records.

    \b
    Example:
      strandline group describe billing
    """
    groups = _groups(bootstrap, cluster)
    found = groups.describe(name)
    positions = groups.positions(name)
    owners = {place: member for member in found.members for place in member.partitions}
    plain = {
        "group": name,
        "protocol": found.protocol,
        "state": found.state,
        "coordinator": found.coordinator,
        "assignor": found.assignor,
        "members": [
            {**member._asdict(), "partitions": [place._asdict() for place in member.partitions]}
            for member in found.members
        ],
        "offsets": [_plain(position) for position in positions],
    }
    rows = [
        (
            each.place.topic,
            each.place.partition,
            each.offset,
            each.end,
            each.lag,
            owners[each.place].member_id if each.place in owners else None,
        )
        for each in positions
    ]
    members = [
        (
            member.member_id,
            member.instance_id,
            member.client_id,
            member.host,
            member.protocol or None,
            len(member.partitions),
        )
        for member in found.members
    ]
    head = (
        f"{name}: {found.state}, protocol {found.protocol}, {plural(len(members), 'member')}, "
        f"coordinator {found.coordinator}" + (f", assignor {found.assignor}" if found.assignor else "")
    )
    shown: list[Any] = [escaped(head)]
    if rows:
        names = ("TOPIC", "PARTITION", "OFFSET", "END", "LAG", "MEMBER")
        shown.append(table(names, rows, right=(1, 2, 3, 4)))
    if members:
        names = ("MEMBER", "INSTANCE", "CLIENT", "HOST", "PROTOCOL", "PARTITIONS")
        shown.append(table(names, members, right=(5,)))
    show(as_json, plain, shown)


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="GROUP...")],
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Delete groups without members and all their offsets, for good. A failure does not stop the others.

    \b
    Example:
      strandline group delete billing reports
    """
    failed = _groups(bootstrap, cluster).delete(names)
    deleted = [name for name in names if name not in failed]
    if deleted:
        show(as_json, {"deleted": deleted}, f"deleted: {', '.join(deleted)}")
    if len(failed) == 1:
        raise failed.popitem()[1]
    if failed:
        raise CommandFailed("; ".join(map(str, failed.values())), "see `strandline group list`")


@app.command("reset-offsets")
def reset_offsets(
    name: Name,
    topics: Annotated[
        list[str], typer.Option("--topic", help="Topic to reset, all its partitions; may be repeated.")
    ],
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="beginning, end, an offset, a time (2026-01-31T12:00:00Z), or how long ago (90s 15m 2h 7d).",
        ),
    ],
    partitions: Annotated[
        list[int] | None,
        typer.Option("--partition", min=0, help="Only this partition; may be repeated. Default: all."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the offsets that would be set.")
    ] = False,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Set the offsets of a group without members. The group need not exist yet.

    An offset that a partition does not have becomes the nearest it has; a time without a later record, its
    end.

    \b
    Examples:
      strandline group reset-offsets billing --topic orders --from beginning --dry-run
      strandline group reset-offsets billing --topic orders --from 2h
    """
    start = parse_start(begin, time.time())
    groups = _groups(bootstrap, cluster)
    places = groups.places(topics, partitions)
    offsets = groups.found(places, start)
    if not dry_run:
        groups.set(name, offsets)
    plain = {
        "group": name,
        "dry_run": dry_run,
        "offsets": [{**place._asdict(), "offset": offset} for place, offset in offsets.items()],
    }
    rows = [(place.topic, place.partition, offset) for place, offset in offsets.items()]
    head = f"{name} {'would go' if dry_run else 'goes'} on from:"
    listed = table(("TOPIC", "PARTITION", "OFFSET"), rows, right=(1, 2))
    show(as_json, plain, [escaped(head), listed])


def _plain(position: Position) -> dict[str, Any]:
    return {
        **position.place._asdict(),
        "offset": position.offset,
        "end": position.end,
        "lag": position.lag,
    }


def _groups(bootstrap: str | None, cluster: Cluster) -> Groups:
    from strandline.cluster.group_client import Groups

    return Groups(target(bootstrap=bootstrap, folder=cluster))
