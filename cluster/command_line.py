"""The `strandline` command: one entry point to run, operate and inspect a cluster."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import sys
import traceback
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from strandline.cluster import client_settings
from strandline.cluster.commands import (
    acls,
    audit,
    balance,
    checkpoint,
    clusters,
    compaction,
    consume,
    export,
    gc,
    groups,
    node,
    produce,
    quotas,
    sql,
    topics,
    transactions,
    users,
    view,
)
from strandline.cluster.failure import FAILED, MISUSED, CommandFailed, ReaderGone, one_line
from strandline.cluster.output import Json, show

app = typer.Typer(
    name="strandline",
    help="Run, operate and inspect Strandline. Start with `strandline cluster up`.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
clusters.app.add_typer(balance.app, name="balance")
app.add_typer(clusters.app, name="cluster")
app.add_typer(node.app, name="node")
app.add_typer(topics.app, name="topic")
app.add_typer(transactions.app, name="transaction")
app.add_typer(groups.app, name="group")
app.add_typer(users.app, name="user")
app.add_typer(acls.app, name="acl")
app.add_typer(quotas.app, name="quota")
app.command()(produce.produce)
app.command()(consume.consume)
app.command()(checkpoint.checkpoint)
app.add_typer(gc.app, name="gc")
app.add_typer(compaction.app, name="compaction")
app.command()(audit.audit)
app.command()(export.export)
app.command()(sql.sql)
app.add_typer(view.app, name="view")


@app.callback()
def whole(
    version: Annotated[bool, typer.Option("--version", help="Print the version of Strandline.")] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="How to log in at Kafka's ports, and what to trust: a file like Kafka's client.properties. "
            "It stands before the command: strandline --config FILE topic list.",
        ),
    ] = None,
) -> None:
    """Take what holds for every command; `--version` alone is answered before this is imported."""
    client_settings.given({} if config is None else client_settings.load(config))
    if version:
        raise CommandFailed(
            "--version stands alone", "for more about versions: strandline version --json", MISUSED
        )


@app.command()
def version(as_json: Json = False) -> None:
    """Print the versions of Strandline, of its Raft library and of Python.

    \b
    Example:
      strandline version --json
    """
    versions = {
        "strandline": metadata.version("strandline"),
        "pysyncobj": metadata.version("pysyncobj"),
        "python": platform.python_version(),
    }
    show(
        as_json,
        versions,
        "strandline {strandline} (pysyncobj {pysyncobj}, python {python})".format(**versions),
    )


@app.command("help")
def help_(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND...]", help="Command to explain.")
    ] = None,
) -> None:
    """Show a command's help, as its --help does.

    \b
    Example:
      strandline help topic create
    """
    app([*(words or ()), "--help"], prog_name="strandline", standalone_mode=False)


def run() -> int:
    """Run the command line; the status to end with. KeyboardInterrupt goes through.

    It is 0, or 1 when something is wrong with what was looked at, or 2 when the command was misused; in both
    cases one line on stderr names cause and cure. A reader that went away ends it as it ends any other tool:
    without a word, by the signal's status.
    """
    try:
        for argument in sys.argv[1:]:
            _check_text(argument)
        status = app(standalone_mode=False)
        sys.stdout.flush()
    except TyperException as error:
        problem = one_line(error.format_message())
        # Of the command that was misused, not of all of them.
        context = getattr(error, "ctx", None)
        path = "strandline" if context is None else context.command_path
        print(f"strandline: {problem}; see {path} --help", file=sys.stderr)
        return error.exit_code
    except CommandFailed as error:
        print(f"strandline: {error}", file=sys.stderr)
        return error.status
    except (ReaderGone, BrokenPipeError):
        # What is left in the buffer has no reader, and the interpreter would complain about it at its end.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        print(f"strandline: {_place(error)}", file=sys.stderr)
        return FAILED
    except Exception as error:
        print(f"strandline: {_unforeseen(error)}", file=sys.stderr)
        return FAILED
    return int(status or 0)


def _check_text(argument: str) -> None:
    """CommandFailed for bytes that are no UTF-8: librdkafka reads a name that has none, and crashes."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        cause = f"{argument.encode(errors='surrogateescape')!r} is not text"
        raise CommandFailed(cause, "write arguments in UTF-8", MISUSED) from None


def _place(error: OSError) -> str:
    """The system's refusal and the file it concerns; the user named that file, or its folder."""
    name = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else ""
    told = one_line(str(error.strerror or error))
    return f"{name or 'the system'}: {told}; name another place, or see its rights and its disk"


def _unforeseen(error: Exception) -> str:
    """A mistake of this program, in one line that says where it is."""
    here = Path(__file__).parent
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if here in Path(frame.filename).parents]
    place = "" if not own else f" at {Path(own[-1].filename).relative_to(here.parent)}:{own[-1].lineno}"
    return (
        f"this should not have happened: {one_line(f'{type(error).__name__}: {error}')}{place}; "
        "that is a mistake in strandline: please report it with the command you typed"
    )
