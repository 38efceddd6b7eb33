"""`strandline node`: one node in the foreground, the way a service manager or a container runs it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from cluster.local import NODE_PROGRAM
from cluster.output import Json


def node(
    config: Annotated[Path, typer.Option("--config", metavar="FILE", help="The node's TOML file.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Over what the file says.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run one node in the foreground until SIGTERM or Ctrl-C. --json: the log as JSON lines.

    \b
    Examples:
      strandline node --config /etc/strandline/node.toml
      STRANDLINE_LOG_LEVEL=debug strandline node --config node.toml --set kafka.port=19092
    """
    command = [*NODE_PROGRAM, "--config", str(config)]
    for setting in [*(settings or ()), *(["log.format=json"] if as_json else ())]:
        command += ["--set", setting]
    sys.stdout.flush()
    # The node takes this process's place, so signals and the exit status are its own.
    os.execv(command[0], command)
