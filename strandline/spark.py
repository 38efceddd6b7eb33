"""Topics as data frames, straight from object storage: `spark.read.format("strandline")` in any session.

`session` starts one that works at the first try on one machine, or on a cluster. `ship` sends this package to
the executors of a session that was started otherwise. `register` is for a session that could not
find the source by itself, or has more cores than the driver's machine. `cut` and `backfill` are for a batch
that a stream goes on from.

The extra `spark` brings PySpark; importing this without it raises ImportError with the command that installs
it. No library of a node's is needed. See docs/spark.md.
"""

from __future__ import annotations

from strandline.snapshot.spark.backfill import backfill, cut
from strandline.snapshot.spark.no_spark import NoContext, NoFolder, NoJava, NoMaster
from strandline.snapshot.spark.options import SourceError
from strandline.snapshot.spark.session import session
from strandline.snapshot.spark.shipping import ship
from strandline.snapshot.spark.source import register

__all__ = [
    "NoContext",
    "NoFolder",
    "NoJava",
    "NoMaster",
    "SourceError",
    "backfill",
    "cut",
    "register",
    "session",
    "ship",
]
