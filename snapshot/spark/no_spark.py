"""Reasons for having no session of Spark, or none that does what is asked; `str()` of each is one line."""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

CONNECT_CURE: Final = "read there with SparkSession.builder.remote; audits and SQL take local or spark://"


class NoSpark(Exception):
    """Spark gives no session; `str()` is one line: `cause`, `cure`."""

    def __init__(self, cause: str, cure: str) -> None:
        super().__init__(f"{cause}: {cure}")
        self.cause = cause
        self.cure = cure


class NoJava(NoSpark):
    """Spark needs Java and there is none, or one that is too old."""


class NoMaster(NoSpark):
    """The master cannot be reached, or it takes no application."""


class NoFolder(NoSpark):
    """Nothing can be written among the temporary files."""


class NoContext(NoSpark):
    """The session is one of Spark Connect, which has no context."""


def require_context(spark: SparkSession, what: str, cure: str = CONNECT_CURE) -> None:
    """Raise NoContext unless the session has a context; `what` is what needs it, and the verb."""
    if not hasattr(spark, "sparkContext"):
        raise NoContext(f"{what} a session's context, and one of Spark Connect has none", cure)
