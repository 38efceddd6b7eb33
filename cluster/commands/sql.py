"""`strandline sql`: a query over topics as tables, by Spark, from the object storage alone."""

from __future__ import annotations

import csv
import json
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import UTC, date, datetime
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO, TypeVar

import typer

from strandline.cluster.commands.sql_prompt import prompt
from strandline.cluster.failure import MISUSED, CommandFailed, ReaderGone, one_line
from strandline.cluster.output import escaped, plural, progress, warn
from strandline.cluster.stored import (
    ClusterId,
    StorageOptions,
    StorageUrl,
    need,
    said,
    storage_options,
    where,
)
from strandline.cluster.target import Cluster
from strandline.snapshot.own_output import own_output

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

Asked = TypeVar("Asked")
Answer = Callable[[str, int], tuple[list[str], list[list[Any]], bool]]
"""`answer(query, most)` gives the columns' names, at most so many rows, and whether there are more; raises
CommandFailed."""
FORMATS: Final = ("table", "json", "csv")
ENDING_SECONDS: Final = 0.2
"""Time between two attempts to end a query's jobs: it may begin one as it is planned."""
CELL: Final = 200
"""Characters of a cell of a table; other formats have all of them."""


def sql(
    query: Annotated[
        str | None,
        typer.Argument(
            metavar="QUERY",
            help="Spark SQL; topics are tables. With -, or without it, stdin has it; a terminal is a prompt.",
        ),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="table, json (an object for each row) or csv (with a header).")
    ] = "table",
    most: Annotated[
        int, typer.Option("--max", metavar="ROWS", min=1, max=1_000_000, help="Print at most this many rows.")
    ] = 1000,
    storage: StorageUrl = None,
    cluster_id: ClusterId = None,
    options: StorageOptions = None,
    at: Annotated[
        int | None,
        typer.Option(
            metavar="CHECKPOINT",
            min=1,
            help="Read an earlier checkpoint of all topics, by the number that `strandline checkpoint` told.",
        ),
    ] = None,
    master: Annotated[str, typer.Option(metavar="MASTER", help="Spark master to run on.")] = "local[*]",
    cluster: Cluster = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Query topics as of the newest checkpoint, or of --at. Fields of JSON objects are columns.

    Other values have the columns key and value; _partition, _offset, _timestamp and _headers are everywhere.
    Of a long cell --format table shows the beginning. stderr says so if there are more rows than --max.

    \b
    Examples:
      strandline sql 'select carrier, count(*) from flights group by 1'
      strandline sql 'select * from `my.topic` where _partition = 0 limit 5' --format json
      strandline sql --max 100000 --format csv < report.sql > report.csv
      strandline sql
    """
    need("spark")
    form = "json" if as_json else form
    if form not in FORMATS:
        raise CommandFailed(f"--format is {form}", f"choose from {', '.join(FORMATS)}", MISUSED)
    prompted = query is None and sys.stdin.isatty()
    text = query if prompted or query not in (None, "-") else _stdin()
    text = (text or "").strip().removesuffix(";").strip()
    if not text and not prompted:
        raise CommandFailed("there is no query", "write one behind `strandline sql`, or on stdin", MISUSED)
    url, name = where(storage, cluster_id, cluster)
    read = {"url": url, **{f"storage.{key}": value for key, value in storage_options(options).items()}}
    if name is not None:
        read["cluster"] = name
    if at is not None:
        read["checkpoint"] = str(at)
    with own_output() as output, _answers(read, master) as answer:

        def run(one: str) -> None:
            header, rows, more = answer(one, most)
            try:
                _write(output, form, header, rows)
                output.flush()
            except BrokenPipeError:
                raise ReaderGone from None
            if more:
                warn(f"there are more rows than {most:,}; --max prints more of them")

        if prompted:
            prompt(run)
        else:
            run(text)


def _stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise CommandFailed(
            f"stdin is no text ({error.reason})", "write the query in UTF-8", MISUSED
        ) from None


@contextmanager
def _answers(read: Mapping[str, str], master: str) -> Iterator[Answer]:
    """One session's answers to queries, each over topics as they are at its moment."""
    # Spark takes a second to import, which no other command should pay for.
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    from strandline.snapshot.object_frame import BadObject
    from strandline.snapshot.spark.no_spark import NoSpark
    from strandline.snapshot.spark.options import SourceError
    from strandline.snapshot.spark.program_folder import program_folder
    from strandline.snapshot.spark.session import session
    from strandline.snapshot.spark.topic_views import TopicViews, check_storage
    from strandline.snapshot.storage import StorageError

    # It writes each error as a screen of JSON to stderr, beside raising it.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    try:
        check_storage(read)
        scratch = program_folder("sql-")
        configs = {"spark.sql.warehouse.dir": scratch, "spark.local.dir": scratch}
        with progress(False) as tell:
            tell("starting Spark")
            spark = session("strandline sql", master, configs, short_jobs=True)
    except NoSpark as error:
        raise CommandFailed(error.cause, error.cure, MISUSED) from None
    except (SourceError, StorageError, BadObject) as error:
        raise said(error) from None

    topics = TopicViews(spark, read)

    def answer(text: str, most: int) -> tuple[list[str], list[list[Any]], bool]:
        try:
            with progress(False) as tell:
                tell("running the query")
                frame, rows = until_interrupted(spark, lambda: _asked(topics.query(text), most + 1))
            moments = ["timestamp_ntz" not in one.dataType.simpleString() for one in frame.schema]
            plain = [[_plain(*cell) for cell in zip(row, moments, strict=True)] for row in rows[:most]]
            return _names(frame), plain, len(rows) > most
        except (SourceError, StorageError, BadObject) as error:
            raise said(error) from None
        except PySparkException as error:
            raise _refused(error) from None

    try:
        yield answer
    finally:
        spark.stop()


def until_interrupted(spark: SparkSession, ask: Callable[[], Asked]) -> Asked:
    """Return what `ask` gives, which control-C ends, and its jobs in Spark.

    It is asked in a thread of its own: Spark ends jobs by a question to Java of the thread that is
    interrupted, and that may not have one of its own under way.
    """
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(ask)
        try:
            return asked.result()
        finally:
            while not asked.done():
                spark.sparkContext.cancelAllJobs()
                wait([asked], ENDING_SECONDS)


def _asked(frame: DataFrame, most: int) -> tuple[DataFrame, list[Row]]:
    return frame, frame.limit(most).collect() if frame.columns else []


def _names(frame: DataFrame) -> list[str]:
    """The columns' names; a second one of a name gets a number, since objects of JSON have each once."""
    found: list[str] = []
    for name in frame.columns:
        number, free = 1, name
        while free in found:
            number += 1
            free = f"{name}_{number}"
        found.append(free)
    return found


def _refused(error: Exception) -> CommandFailed:
    """Spark's own words in one line: the last of the source's, else the first of Spark's."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [line for line in lines if line.startswith(_OWN_ERRORS)]
    if own:
        return said(Exception(own[-1].partition(": ")[2]))
    first = one_line((lines or [type(error).__name__])[0]).rstrip(";")
    return CommandFailed(first, "correct the query: it is Spark SQL, and topics are its tables", MISUSED)


_OWN_ERRORS: Final = (
    "strandline.snapshot.spark.options.SourceError:",
    "strandline.snapshot.storage.",
    "strandline.snapshot.object_frame.BadObject:",
)


def _write(output: TextIO, form: str, header: list[str], rows: list[list[Any]]) -> None:
    if form == "json":
        for row in rows:
            output.write(json.dumps(dict(zip(header, row, strict=True)), ensure_ascii=False) + "\n")
    elif form == "csv":
        writer = csv.writer(output, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([_text(value, "") for value in row] for row in rows)
    else:
        _write_table(output, header, rows)


def _write_table(output: TextIO, header: list[str], rows: list[list[Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(header):
        numbers = all(row[number] is None or isinstance(row[number], (int, float)) for row in rows)
        made.add_column(escaped(name), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        made.add_row(*(escaped(_short(_text(value, "NULL"))) for value in row))
    wide = output.isatty()
    Console(file=output, width=None if wide else 100_000, highlight=False).print(made)
    output.write(f"({plural(len(rows), 'row')})\n")


def _short(text: str) -> str:
    return text if len(text) <= CELL else text[: CELL - 1] + "…"


def _text(plain: Any, null: str) -> str:
    """A cell as text; arrays, structs and maps are JSON."""
    if plain is None:
        return null
    if isinstance(plain, bool):
        return "true" if plain else "false"
    if isinstance(plain, (list, dict)):
        return json.dumps(plain, ensure_ascii=False)
    return str(plain)


def _plain(value: Any, moments: bool) -> Any:
    """A value of a row as JSON has it: bytes that are no text in base64, times in ISO 8601.

    `moments`: times without a zone are moments in this machine's zone, as PySpark gives them, not clocks.
    """
    from pyspark.sql import Row

    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, Row):
        return {name: _plain(one, moments) for name, one in value.asDict().items()}
    if isinstance(value, list):
        return [_plain(one, moments) for one in value]
    if isinstance(value, dict):
        return {_text(_plain(name, moments), "null"): _plain(one, moments) for name, one in value.items()}
    if isinstance(value, (bytes, bytearray)):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return b64encode(value).decode()
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if moments else value).isoformat()
    return value.isoformat() if isinstance(value, date) else str(value)
