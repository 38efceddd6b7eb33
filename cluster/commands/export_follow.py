"""`strandline export --follow`: what is new, again and again until a signal, also past errors that pass."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Any, Final

from strandline.cluster.failure import one_line
from strandline.cluster.output import plural, warn

if TYPE_CHECKING:
    from strandline.snapshot.spark.export.run import Export
    from strandline.snapshot.spark.export.running import Exported

PATIENCE_SECONDS: Final = 600.0
"""Longest time with nothing but errors before they end the run: a bucket or a catalog that is restarted, or a
network that is mended, is back by then, and what is not takes a person."""
SOON_SECONDS: Final = 10.0
"""Longest wait for the next look behind an error, however seldom the run looks otherwise."""


def follow(export: Export, every: float, tell: Any, each: Callable[[Exported], None]) -> None:
    """Export what is new, again and again, until a signal comes.

    The first look raises what a run raises. Later ones go on past what may pass by itself: storage, target or
    table that do not answer, a document that is half there. Such an error is told, and raised if it was all
    that there was for PATIENCE_SECONDS. What was exported is handed to `each`, also in front of an error.
    """
    # Arrow takes half a second to import, which no other command should pay for.
    from strandline.snapshot.object_frame import BadObject
    from strandline.snapshot.spark.export.errors import TableFailed
    from strandline.snapshot.spark.export.running import Exported
    from strandline.snapshot.spark.options import SourceError
    from strandline.snapshot.storage import StorageError

    failing: float | None = None
    """Time of the first of the errors that came last, without a round between them."""
    said, looked = "", False
    with _signalled() as ended:
        while not ended.is_set():
            done, wait = Exported(), every
            try:
                export.run(telling(tell), ended.is_set, done)
            except (TableFailed, SourceError, StorageError, BadObject) as error:
                now = time.monotonic()
                failing = now if failing is None or done.rounds else failing
                if not looked or now - failing >= PATIENCE_SECONDS:
                    if done.rounds:
                        each(done)
                    raise
                wait = min(every, SOON_SECONDS)
                if str(error) != said:
                    said = str(error)
                    warn(f"{one_line(said)}; it looks again, for up to {PATIENCE_SECONDS / 60:g} minutes")
            else:
                if failing is not None:
                    warn(f"it goes on, {time.monotonic() - failing:.0f} s after the first error")
                failing, said, looked = None, "", True
            if done.rounds:
                each(done)
            tell(f"waiting for more, looks again in {wait:g} s")
            ended.wait(wait)


@contextmanager
def _signalled() -> Iterator[Event]:
    """An event that SIGINT or SIGTERM sets; a second signal does what it always does."""
    ended = Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def end(*_: object) -> None:
        restore()
        ended.set()

    for number in before:
        signal.signal(number, end)
    try:
        yield ended
    finally:
        restore()


def telling(tell: Any) -> Callable[[Exported, int, int], None]:
    """Shows how far a run is."""

    def told(done: Exported, ended: int, units: int) -> None:
        tell(f"{plural(done.records, 'record')} exported; round {done.rounds + 1}: {ended} of {units} parts")

    return told
