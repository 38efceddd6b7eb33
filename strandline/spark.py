"""Topics as data frames, straight from object storage: `register` makes the source known to a Spark session.

The extra `spark` brings PySpark; importing this without it raises ImportError with the command that installs
it. No library of a node's is needed. See docs/spark.md.
"""

from __future__ import annotations

from strandline.snapshot.spark.options import SourceError
from strandline.snapshot.spark.session import NoJava, session
from strandline.snapshot.spark.source import register

__all__ = ["NoJava", "SourceError", "register", "session"]
