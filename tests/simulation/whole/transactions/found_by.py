"""The checks that each sabotage violates: a finding of any other check is not the sabotage's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FOUND_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "late-batch-accepted": ("aborted_reads",),
    "number-ignored": ("aborted_reads",),
    "sequences-ignored": ("once",),
    "abort-before-raise": ("lost_writes",),
    "verified-blindly": ("followers catch up",),
    "generation-ignored": ("wrongly_consumed",),
    "conversion-frees-all": ("wrongly_consumed",),
    "unstable-offsets-given": ("wrongly_consumed",),
    "markers-not-taken-up": ("transactions end",),
    "markers-sent-once": ("followers catch up",),
    "answered-before-prepare": ("lost_writes",),
    "read-past-stable": ("aborted_reads",),
    "aborted-not-told": ("aborted_reads",),
    "markers-without-numbers": ("lost_writes",),
    "ended-numbers-taken": ("replica failure",),
    "refusals-unheard": ("followers catch up",),
    "markers-done-unheard": ("followers catch up",),
    "state-without-stable-offset": ("aborted_reads",),
    "points-without-a-hold": ("tail points",),
    "points-backwards": ("tail points",),
    "points-before-tails": ("tail points",),
    "restored-forgotten": ("tail points", "restored transactions end"),
    "restored-open-committed": ("restored transactions",),
    "restored-pending-committed": ("restore",),
    "any-folder": ("folders",),
    "joins-as-a-founder": ("folders",),
    "left-too-early": ("folders",),
}
