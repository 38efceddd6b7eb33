"""The `strandline` command: the one entry point for whoever runs or looks into a cluster."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import sys
from importlib import metadata

import typer
from typer.exceptions import TyperException

from cluster.commands import (
    audit,
    checkpoint,
    clusters,
    consume,
    gc,
    groups,
    node,
    produce,
    topics,
    transactions,
)
from cluster.failure import CommandFailed, ReaderGone
from cluster.output import Json, show

app = typer.Typer(
    name="strandline",
    help="Run, operate and look into Strandline. Begin with `strandline cluster up`.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(clusters.app, name="cluster")
app.command()(node.node)
app.add_typer(topics.app, name="topic")
app.add_typer(transactions.app, name="transaction")
app.add_typer(groups.app, name="group")
app.command()(produce.produce)
app.command()(consume.consume)
app.command()(checkpoint.checkpoint)
app.add_typer(gc.app, name="gc")
app.command()(audit.audit)


@app.command()
def version(as_json: Json = False) -> None:
    """Print the version of Strandline, of the Raft library it stands on and of Python.

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


def main() -> None:
    """Run the command line.

    It ends with status 0, with 1 when something is wrong with what it looked at, with 2 when it was misused;
    in both cases one line on stderr names cause and cure. Ctrl-C and a reader that went away end it as they
    end any other tool: without a word, by the signal's status.
    """
    try:
        status = app(standalone_mode=False)
        sys.stdout.flush()
    except TyperException as error:
        problem = " ".join(error.format_message().split()).rstrip(".")
        print(f"strandline: {problem}; see strandline --help", file=sys.stderr)
        sys.exit(error.exit_code)
    except CommandFailed as error:
        print(f"strandline: {error}", file=sys.stderr)
        sys.exit(error.status)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except (ReaderGone, BrokenPipeError):
        # What is left in the buffer has no reader, and the interpreter would complain about it at its end.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    sys.exit(status)
