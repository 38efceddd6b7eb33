"""The dangerous schedules of views, S1 to S18: each brings about one order of events, in random surroundings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.simulation.views.stage import NEW, OLD, Stage


def after_commit(on: Stage) -> None:
    """S2: the process dies when its outputs are committed, and the state that has them is not stored."""
    on.sell(20)
    on.go_live(OLD)
    on.keep_selling()
    for _ in range(3):
        on.kill_at("commit", live=True, count=on.rng.randint(1, 4))
        on.run(2.0)


SCHEDULES: Final[dict[str, Callable[[Stage], None]]] = {
    "S2": after_commit,
}
_ = NEW
