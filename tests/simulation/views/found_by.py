"""The checks that each sabotage violates, and seeds that find it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FOUND_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "state-one-late": ("equal to its SQL",),
    "replay-aloud": ("told twice",),
    "hold-at-the-commit": ("comes to its end",),
    "lost-hold-passes": ("equal to its SQL",),
    "any-pause": ("equal to its SQL",),
    "unknown-is-refused": ("equal to its SQL",),
    "state-forgets-a-value": ("comes to its end",),
    "silent-last-round": ("equal to its SQL",),
    "merge-anywhere": ("equal to its SQL",),
    "shared-runs-deleted": ("comes to its end",),
    "hash-is-proof": ("equal to its SQL",),
    "every-change-of-a-key": ("comes to its end", "equal to its SQL"),
    "float-accumulator": ("equal to its SQL",),
    "reads-uncommitted": ("equal to its SQL",),
    "gone-is-passed-over": ("equal to its SQL",),
    "content-moves": ("equal to its SQL",),
    "parts-again": ("told twice",),
    "cancel-after-cutover": ("names",),
    "failure-spreads": ("others do not notice",),
    "order-counts": ("nothing is filled",),
    "names-without-pause": ("equal to its SQL", "after its end"),
    "holds-stay": ("nothing is left",),
    "stopped-is-not-shut-out": ("after its end",),
    "stop-lets-all-pass": ("after its end",),
}
FOUND_WITH: Final[Mapping[str, tuple[int, ...]]] = {
    "state-one-late": (0,),
    "replay-aloud": (1,),
    "hold-at-the-commit": (2,),
    "lost-hold-passes": (3,),
    "any-pause": (4,),
    "unknown-is-refused": (5,),
    "state-forgets-a-value": (6,),
    "silent-last-round": (7,),
    "merge-anywhere": (8,),
    "shared-runs-deleted": (31,),
    "hash-is-proof": (9,),
    "every-change-of-a-key": (10,),
    "float-accumulator": (11,),
    "reads-uncommitted": (12,),
    "gone-is-passed-over": (13,),
    "content-moves": (14,),
    "parts-again": (14,),
    "cancel-after-cutover": (38,),
    "failure-spreads": (16,),
    "order-counts": (17,),
    "names-without-pause": (18,),
    "holds-stay": (19,),
    "stopped-is-not-shut-out": (21,),
    "stop-lets-all-pass": (22,),
}
