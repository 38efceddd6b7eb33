"""The parts that the demonstrations share: their cluster, their steps, their table."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from strandline.cluster.local import LocalCluster
from strandline.cluster.ports import free_ports


class Stage:
    """Says what is going on: bars on a terminal, a line for each step otherwise."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def step(self, title: str, total: int | None = None) -> Any:
        started = time.perf_counter()
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn() if total is not None else TextColumn(""),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        ) as bars:
            task = bars.add_task(title, total=total)
            yield lambda count: bars.update(task, completed=count)
        self._console.print(f"{title}: {time.perf_counter() - started:.1f} s", highlight=False)


@contextmanager
def new_cluster(out: Path, nodes: int, keep: bool, console: Console) -> Iterator[LocalCluster]:
    """A new cluster below a folder, in the place of one that an earlier run has left."""
    folder = out / "cluster"
    if (folder / "cluster.json").exists():
        LocalCluster(folder).down()
        shutil.rmtree(folder)
    out.mkdir(parents=True, exist_ok=True)
    cluster = LocalCluster(folder)
    with Stage(console).step(f"starting {nodes} nodes"):
        cluster.up(nodes, choose_ports=free_ports)
    try:
        yield cluster
    finally:
        if not keep:
            cluster.down()


def table(rows: Sequence[tuple[str, str, bool]]) -> Table:
    """Give a table of figures, those that are not as they should be in red."""
    shown = Table(box=None, show_header=False, pad_edge=False)
    shown.add_column()
    shown.add_column(justify="right")
    for what, figure, good in rows:
        shown.add_row(what, figure if good else f"[bold red]{figure}[/]")
    return shown
