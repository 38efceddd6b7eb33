"""The `strandline` command: the one entry point for whoever runs or looks into a cluster."""

from __future__ import annotations

import json
import platform
import sys
from importlib import metadata
from typing import Annotated

import typer
from typer.exceptions import TyperException

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]

app = typer.Typer(
    name="strandline",
    help="Run, operate and look into Strandline.",
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _strandline() -> None:
    # With a callback Typer keeps `version` a subcommand although it is the only one.
    pass


@app.command()
def version(as_json: Json = False) -> None:
    """Print the version of Strandline, of the Raft library it stands on and of Python."""
    versions = {
        "strandline": metadata.version("strandline"),
        "pysyncobj": metadata.version("pysyncobj"),
        "python": platform.python_version(),
    }
    if as_json:
        typer.echo(json.dumps(versions))
    else:
        typer.echo("strandline {strandline} (pysyncobj {pysyncobj}, python {python})".format(**versions))


def main() -> None:
    """Run the command line; bad arguments end it with status 2 and one line that names cause and cure."""
    try:
        status = app(standalone_mode=False)
    except TyperException as error:
        problem = " ".join(error.format_message().split()).rstrip(".")
        print(f"strandline: {problem}; see strandline --help", file=sys.stderr)
        sys.exit(error.exit_code)
    sys.exit(status)
