"""`strandline audit`: check with Spark, from the object storage alone, that a cluster kept its promises."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cluster.failure import FAILED, MISUSED, CommandFailed
from strandline.cluster.output import Json, escaped, progress, show, table
from strandline.cluster.stored import StorageOptions, StorageUrl, local_storage, need, storage_options
from strandline.cluster.target import Cluster

if TYPE_CHECKING:
    from strandline.snapshot.spark.audits.result import AuditRun


def audit(
    storage: StorageUrl = None,
    cluster_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Id of the cluster; needed with --storage.")
    ] = None,
    options: StorageOptions = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report as one HTML page.")
    ] = None,
    grace: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Grace period: collectable objects younger than this are not reported.",
        ),
    ] = 1800.0,
    full: Annotated[
        bool,
        typer.Option("--full", help="Read all objects again, also those that an earlier audit has proven."),
    ] = False,
    master: Annotated[str, typer.Option(metavar="MASTER", help="Spark master to run on.")] = "local[*]",
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Audit the newest checkpoint of a cluster. Exits with status 1 if an audit has a finding.

    It reads the object storage and nothing else: the cluster need not run. Take a checkpoint first. An audit
    without a finding leaves a proof below audits/ of the storage, and the next one reads what is new.

    \b
    Examples:
      strandline checkpoint && strandline audit --html audit.html
      strandline audit --storage s3://bucket/prefix --cluster-id prod --option region=eu-west-1
    """
    need("spark", *(["report"] if html is not None else []))
    url, name = _where(storage, cluster_id, cluster)
    read_options = storage_options(options)
    with progress(as_json) as tell:
        tell("starting Spark")
        shown = None if as_json or not sys.stderr.isatty() else tell
        run = _run(url, read_options, name, grace, full, master, html, shown)
    rows = [
        (result.name, result.verdict.value, result.looked_at, result.findings or "") for result in run.results
    ]
    listed = table(("AUDIT", "VERDICT", "LOOKED AT", "FINDINGS"), rows, right=(3,))
    proof = [f"\n{run.proof_line}"] if run.proof_line else []
    show(as_json, run.as_dict(), [listed, *map(escaped, [*_found(run), *proof])])
    if run.finding:
        raise typer.Exit(FAILED)


def _run(
    url: str,
    options: dict[str, str],
    name: str,
    grace: float,
    full: bool,
    master: str,
    html: Path | None,
    tell: Callable[[str], None] | None,
) -> AuditRun:
    """`tell` shows how far the audit is; None where there is no terminal."""
    # Spark takes a second to import, which no other command should pay for.
    from strandline.snapshot.spark.audits.collecting import Grace
    from strandline.snapshot.spark.audits.progress import watched
    from strandline.snapshot.spark.audits.report import write_report
    from strandline.snapshot.spark.audits.run import NothingToAudit, check_input, run_audits
    from strandline.snapshot.spark.no_spark import NoSpark
    from strandline.snapshot.spark.session import session

    try:
        check_input(url, options, name)
        spark = session("strandline audit", master, short_jobs=True)
        try:
            allowed = Grace(round(grace * 1000))
            with nullcontext() if tell is None else watched(spark, tell):
                run = run_audits(url, options, name, spark=spark, grace=allowed, full=full)
        finally:
            spark.stop()
    except NothingToAudit as error:
        raise CommandFailed(str(error), "see also --storage, --cluster-id and --option", MISUSED) from None
    except NoSpark as error:
        raise CommandFailed(error.cause, error.cure, MISUSED) from None
    if html is not None:
        try:
            write_report(run, html=html)
        except OSError as error:
            raise CommandFailed(f"{html} cannot be written ({error.strerror})", "name another file") from None
    return run


def _where(storage: str | None, cluster_id: str | None, folder: Path | None) -> tuple[str, str]:
    if storage is not None and cluster_id is not None:
        return storage, cluster_id
    if storage is not None or cluster_id is not None:
        raise CommandFailed(
            "--storage and --cluster-id belong together", "name both, or none for a local cluster", MISUSED
        )
    return local_storage(folder)


def _found(run: AuditRun) -> Iterator[str]:
    """The first findings of each audit that has any."""
    for result in run.results:
        if result.findings:
            yield f"\n{result.name}:"
            yield from (f"  {line}" for line in result.shown)
            if result.not_shown:
                yield f"  and {result.not_shown:,} more; --json and --html list more of them"
