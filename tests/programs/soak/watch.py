"""Looks at the cluster and its storage all the while: how much there is, and that M never goes back."""

from __future__ import annotations

import asyncio
import itertools
import sys
from pathlib import Path
from typing import Any

from strandline.cluster.admin_client import AdminClient, Unreachable
from tests.programs.failover.cluster.nodes import Nodes
from tests.programs.soak.report import Report
from tests.programs.soak.stored import Stored, disk_bytes, stored

DISK_LIMIT_BYTES = 10 << 30
"""The whole folder, logs and objects; a run that needs more has a leak."""
_EVERY_SECONDS = 3.0
_SAY_EVERY = 5


class Watch:
    """Runs until it is cancelled; what it finds is in the report."""

    def __init__(self, nodes: Nodes, folder: Path, report: Report) -> None:
        self._nodes = nodes
        self._folder = folder
        self._report = report
        self._collectable: dict[tuple[int, int], int] = {}
        """M by node and process."""

    async def run(self) -> None:
        for turn in itertools.count():
            there = await asyncio.to_thread(stored, self._nodes.storage)
            disk = await asyncio.to_thread(disk_bytes, self._folder)
            lag = await self.epochs()
            self._note(there, disk, lag)
            if turn % _SAY_EVERY == 0:
                say(
                    f"level zero {there.level_zero.objects:,} objects, {_mb(there.level_zero.bytes)}; "
                    f"level one {there.level_one.objects:,}, {_mb(there.level_one.bytes)}; disk {_mb(disk)}; "
                    f"M is {'-' if lag is None else lag} epochs behind"
                )
            await asyncio.sleep(_EVERY_SECONDS)

    def _note(self, there: Stored, disk: int, lag: int | None) -> None:
        report = self._report
        report.peak_level_zero_objects = max(report.peak_level_zero_objects, there.level_zero.objects)
        report.peak_level_zero_bytes = max(report.peak_level_zero_bytes, there.level_zero.bytes)
        report.peak_bytes = max(report.peak_bytes, there.bytes)
        report.peak_disk_bytes = max(report.peak_disk_bytes, disk)
        report.peak_lag_epochs = max(report.peak_lag_epochs, lag or 0)
        if disk > DISK_LIMIT_BYTES:
            report.findings.append(f"the run takes {_mb(disk)} of disk; its limit is {_mb(DISK_LIMIT_BYTES)}")

    async def epochs(self) -> int | None:
        """The largest distance of M from the cluster epoch at any node, None when no node answers."""
        lags = []
        for node, answer in (await collection(self._nodes)).items():
            maximum = answer["max_collectable_epoch"]
            process = self._nodes.local.description.nodes[node].pid
            if maximum is None or process is None:
                continue
            before = self._collectable.get((node, process), maximum)
            if maximum < before:
                self._report.findings.append(f"M went from {before} back to {maximum} at node {node}")
            self._collectable[node, process] = maximum
            lags.append(answer["cluster_epoch"] - maximum)
        return max(lags, default=None)


async def collection(nodes: Nodes) -> dict[int, Any]:
    """/api/gc of every node that answers."""
    found = {}
    for node in nodes.ids.values():
        try:
            answer = await asyncio.to_thread(AdminClient(node.admin).request, "GET", "/api/gc", timeout=5.0)
        except Unreachable:
            continue
        if answer.status == 200:
            found[node.node] = answer.body
    return found


def say(text: str) -> None:
    """A line for who waits."""
    print(text, file=sys.stderr, flush=True)


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
