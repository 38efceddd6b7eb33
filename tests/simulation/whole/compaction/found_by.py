"""The checks that each sabotage violates: a finding of any other check is not the sabotage's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FOUND_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "answered": ("removal overtakes none",),
    "greatest": ("removal overtakes none",),
    "hearsay": ("reports are durable",),
    "manifest-unsynced": ("reports are durable",),
    "all-is-ripe": ("clean is clean: C3",),
    "ripe-at-once": ("retention of tombstones",),
    "aborted-kept": ("settled",),
    "open-settled": ("settled",),
    "planned-bound": ("clean is clean: C1",),
    "first-retention": ("retention in force",),
    "trimmed-is-clean": ("clean is clean: C1",),
    "compacted-expires": ("compact only",),
    "keyless-taken": ("keyless",),
    "log-stays": ("logs that are not needed go",),
    "not-swept": ("logs that are not needed go",),
    "always-in-step": ("in step", "dead and alive"),
    "old-view": ("dead and alive",),
    "called-cleaner": ("clean is clean: C1",),
    "own-log-forgotten": ("removal overtakes none",),
    "learners-forgotten": ("removal overtakes none",),
    "first-members": ("removal overtakes none",),
    "lost-connections": ("removal overtakes none",),
    "ripe-as-markers": ("clean is clean: C3",),
    "markers-dropped": ("clean is clean: C3",),
    "keyless-stay": ("clean is clean: C2",),
    "compared-once": ("clean is clean: C1",),
    "same-by-size": ("settled",),
    "said-cleaner": ("clean is clean: C1",),
    "clean-as-now": ("clean is clean: C1",),
    "front-stays": ("logs are filled",),
}
