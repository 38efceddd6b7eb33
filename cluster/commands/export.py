"""`strandline export`: topics as Parquet files, from the object storage alone, each record once."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cluster.commands.consume import parse_start
from strandline.cluster.commands.export_follow import follow as follow_export
from strandline.cluster.commands.export_follow import telling
from strandline.cluster.commands.export_output import show_check, show_export
from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.output import Json, plural, progress
from strandline.cluster.stored import (
    ClusterId,
    StorageOptions,
    StorageUrl,
    need,
    pairs,
    said,
    storage_options,
    where,
)
from strandline.cluster.target import Cluster

if TYPE_CHECKING:
    from strandline.snapshot.spark.export.check import Checked
    from strandline.snapshot.spark.export.json_columns import Fields
    from strandline.snapshot.spark.export.run import Export
    from strandline.snapshot.spark.export.target import Target
    from strandline.snapshot.spark.options import ReadOptions
    from strandline.snapshot.storage import Storage

FORMATS = ("parquet", "delta", "iceberg")
VALUES = ("bytes", "json")


def export(
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC...", help="Topics to export.")] = None,
    to: Annotated[
        str, typer.Option(metavar="URL", help="Folder or bucket (s3://, gs://, az://) to export to.")
    ] = "",
    partition_by: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help="Folders below a topic's: none, partition, day or hour (of the timestamp, UTC), or with "
            "--value json a column. Default: as the target was begun, or none.",
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="parquet: files alone; delta, iceberg: a table for each topic. "
            "Default: as the target was begun, or parquet.",
        ),
    ] = None,
    catalog: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Property of the Iceberg catalog, as pyiceberg has it; or namespace=NAME. "
            "Default: a file of SQLite in the target's folder.",
        ),
    ] = None,
    value: Annotated[
        str | None,
        typer.Option(
            metavar="bytes|json",
            help="json: the fields of values that are JSON objects are columns. "
            "Default: as the target was begun, or bytes.",
        ),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC:COLUMNS",
            help="With --value json: a topic's columns, as 'orders: id bigint, at timestamp'. "
            "Default: inferred from the values.",
        ),
    ] = None,
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="Where a topic begins that the target has nothing of: beginning, end, an offset, a time "
            "(2026-01-31T12:00:00Z), or how long ago (90s 15m 2h 7d).",
        ),
    ] = "beginning",
    lost_records: Annotated[
        str,
        typer.Option(
            metavar="fail|accept",
            help="What to do when records were deleted before they were exported.",
        ),
    ] = "fail",
    check: Annotated[
        bool, typer.Option("--check", help="Export nothing; hold the files of --to against their manifests.")
    ] = False,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Go on with what is published later, until Ctrl-C or SIGTERM.",
        ),
    ] = False,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, max=86400, help="With --follow: how often it looks.")
    ] = 10.0,
    compact: Annotated[
        bool, typer.Option("--compact", help="Delta: then put large files in the place of small ones.")
    ] = False,
    file_mb: Annotated[
        int, typer.Option(metavar="MB", min=1, max=1024, help="Stored bytes of the topic in one file.")
    ] = 64,
    storage: StorageUrl = None,
    cluster_id: ClusterId = None,
    options: StorageOptions = None,
    to_options: Annotated[
        list[str] | None,
        typer.Option("--to-option", metavar="KEY=VALUE", help="Option of --to where that is a bucket."),
    ] = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Export what is published of some topics, and the target has not: Parquet, Delta, Iceberg.

    Each record is in one file once, whatever is killed when: run it again, and it goes on where it was. It
    reads the object storage and nothing else: the cluster need not run. Nodes publish within 5 seconds.

    \b
    Examples:
      strandline export orders clicks --to /srv/lake --partition-by day
      strandline export --check --to /srv/lake
      strandline export orders --to /srv/tables --format iceberg --value json
      strandline export orders --to /srv/tables --format delta --follow
      strandline export orders --storage s3://bucket/prefix --option region=eu-west-1 --to s3://lake/orders
    """
    need("spark")
    if not to:
        raise CommandFailed("--to is missing", "name the folder or bucket to export to", MISUSED)
    # Arrow takes half a second to import, which no other command should pay for.
    from strandline.snapshot.extras import ExtraMissing
    from strandline.snapshot.object_frame import BadObject
    from strandline.snapshot.spark.export.documents import FIXED
    from strandline.snapshot.spark.export.errors import ExportError
    from strandline.snapshot.spark.export.target import open_target
    from strandline.snapshot.spark.options import SourceError
    from strandline.snapshot.storage import StorageError

    try:
        if check:
            if topics:
                raise CommandFailed(
                    "--check takes no topics", "leave them out: all files are checked", MISUSED
                )
            target = open_target(to, storage_options(to_options, "--to-option"), make=False)
            with progress(as_json) as tell:
                show_check(_check(target, pairs(catalog, "--catalog"), tell), to, as_json)
            return
        if not topics:
            raise CommandFailed("no topic is named", "name one or several", MISUSED)
        settings = {}
        if partition_by is not None:
            settings["partition_by"] = partition_by
            if partition_by not in FIXED and value != "json":
                raise CommandFailed(
                    f"--partition-by {partition_by} is a column of values, and they are bytes",
                    f"give --value json too, or one of {', '.join(FIXED)}",
                    MISUSED,
                )
        if form is not None:
            settings["format"] = _one_of("--format", form, FORMATS)
        if value is not None:
            settings["value"] = _one_of("--value", value, VALUES)
        _one_of("--lost-records", lost_records, ("fail", "accept"))
        if follow and compact:
            raise CommandFailed(
                "--follow and --compact are given",
                "compact by runs of their own, now and then",
                MISUSED,
            )
        given = _given(columns or [], topics)
        url, name = where(storage, cluster_id, cluster)
        read = {"url": url, "topic": ",".join(topics), **_start(begin)}
        if name is not None:
            read["cluster"] = name
        read.update({f"storage.{key}": value for key, value in storage_options(options).items()})
        to_pairs, properties = storage_options(to_options, "--to-option"), pairs(catalog, "--catalog")
        with progress(as_json) as tell:
            tell("looking at what is published")
            asked, stored = _asked(read)  # before a folder is made for what cannot be exported
            target = open_target(to, to_pairs)
            accept = lost_records == "accept"
            exporting = _export(asked, stored, target, settings, properties, given, accept, file_mb)
            if compact and not exporting.compacts:
                raise CommandFailed("--compact is of --format delta", "leave it out, or use an engine")
            if follow:
                follow_export(exporting, every, tell, lambda done: show_export(done, to, as_json))
                return
            done = exporting.run(telling(tell))
            try:
                compacted = exporting.compact() if compact else 0
            except ExportError:
                show_export(done, to, as_json)  # the export itself has succeeded
                raise
    except ExportError as error:
        raise CommandFailed(error.cause, error.cure) from None
    except ExtraMissing as error:
        raise CommandFailed(error.cause, error.cure, MISUSED) from None
    except (SourceError, StorageError, BadObject) as error:
        raise said(error) from None
    show_export(done, to, as_json, compacted)


def _start(begin: str) -> dict[str, str]:
    kind, value = parse_start(begin, time.time())
    if kind == "time":
        return {"startingTimestamp": str(value)}
    return {"startingOffsets": {"beginning": "earliest", "end": "latest"}.get(kind, str(value))}


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise CommandFailed(f"{option} is {value}", f"choose from {', '.join(allowed)}", MISUSED)
    return value


def _given(columns: list[str], topics: list[str]) -> dict[str, Fields]:
    from strandline.snapshot.spark.export.given_columns import given_columns

    found = given_columns(columns)
    for topic in found:
        if topic not in topics:
            raise CommandFailed(
                f"columns of topic {topic!r} are given, which is not exported", "name it, too", MISUSED
            )
    return found


def _asked(read: Mapping[str, str]) -> tuple[ReadOptions, Storage]:
    """The request and the storage, which has a checkpoint with all topics that are asked for."""
    from strandline.snapshot.spark.newest import NewestCheckpoints, check_wanted
    from strandline.snapshot.spark.options import parse
    from strandline.snapshot.storage import open_storage

    options = parse(read)
    storage = open_storage(options.url, options.storage)
    check_wanted(NewestCheckpoints(storage, options.cluster).controller(), options)
    return options, storage


def _export(
    options: ReadOptions,
    storage: Storage,
    target: Target,
    settings: Mapping[str, str],
    catalog: Mapping[str, str],
    columns: Mapping[str, Fields],
    accept_loss: bool,
    file_mb: int,
) -> Export:
    from strandline.snapshot.spark.export.planning import Limits
    from strandline.snapshot.spark.export.run import Export
    from strandline.snapshot.spark.export.running import in_threads

    return Export(
        storage,
        options,
        target,
        in_threads(os.cpu_count() or 1),
        settings=settings,
        limits=Limits(file_mb * 1024 * 1024),
        accept_loss=accept_loss,
        catalog=catalog,
        columns=columns,
    )


def _check(target: Target, catalog: Mapping[str, str], tell: Any) -> Checked:
    from strandline.snapshot.spark.export.check import check

    return check(target, catalog, lambda found: tell(f"checked {plural(found.files, 'file')}"))
