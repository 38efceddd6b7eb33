"""Programs of views in the metrics: what there is, and how the versions go that this node runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from strandline.node.admin.exposition import Page, label
from strandline.node.admin.source import AdminSource
from strandline.node.views.view_process import ViewProcess
from strandline.statemachine.controller.view_state import ViewProgram

STATES: Final = ("live", "filled", "stopped")
_SAID: Final = {
    "strandline_view_records_total": "records",
    "strandline_view_changes_total": "written",
    "strandline_view_skipped_records_total": "skipped",
    "strandline_view_rows": "rows",
    "strandline_view_bytes": "bytes",
}
"""Metrics, and the words of a process's status that are their values."""


def views(page: Page, source: AdminSource) -> None:
    """Programs by state, and the processes here."""
    programs = source.controller.machine.view_programs.values()
    states = Counter(state for program in programs for state in _states(program))
    for state in STATES:
        page.add("strandline_view_programs", states[state], label("state", state))
    for process in source.views.running():
        name = process.name
        version = "live" if name.live else "next"
        labels = f"{label('program', name.program)},{label('version', version)}"
        page.add("strandline_view_process_starts_total", process.starts, labels)
        page.add("strandline_view_process_failures_total", process.failures, labels)
        phase = process.status.get("phase")
        if isinstance(phase, str):
            page.add("strandline_view_phase", 1, f"{labels},{label('phase', phase)}")
        for metric, said in _SAID.items():
            page.add(metric, _number(process.status.get(said)), labels)
        behind = lag(source, process)
        if behind is not None:
            page.add("strandline_view_lag", behind, labels)


def lag(source: AdminSource, process: ViewProcess) -> int | None:
    """Decided records that a process has not taken; None where this node lacks a replica of an input."""
    cut = process.status.get("cut")
    if not isinstance(cut, dict) or not cut:
        return None
    ends = {f"{one.topic}-{one.number}": one.machine.last_stable_offset for one in source.partitions}
    if not cut.keys() <= ends.keys():
        return None
    # A follower may know less than the leader from which the process has read.
    return sum(max(ends[place] - _number(offset), 0) for place, offset in cut.items())


def _states(program: ViewProgram) -> Iterator[str]:
    if program.stopped:
        yield "stopped"
    elif program.live is not None:
        yield "live"
    if program.next is not None:
        yield "filled"


def _number(said: Any) -> int:
    return said if isinstance(said, int) else 0
