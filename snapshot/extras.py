"""The extras of an installation: libraries that only some uses need, and what is said without them."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Final

_NODE: Final = (
    "pysyncobj", "uvloop", "kio", "typer", "rich", "confluent_kafka", "starlette", "uvicorn", "h11",
    "numpy", "pyarrow",
)  # fmt: skip
_EXTRAS: Final = {
    "node": ("a node and the command need", _NODE),
    "spark": ("reading with Spark needs", ("pyspark", "pyarrow", "numpy", "pandas")),
    "sink": ("writing with Spark needs", ("kio",)),
    "export": ("tables of Delta Lake and Iceberg need", ("deltalake", "pyiceberg", "sqlalchemy")),
    "views": ("views need", ("polars", "sqlglot", "xxhash", "pyarrow", "numpy")),
    "report": ("a report with plots needs", ("matplotlib",)),
}
"""By the name of the extra in pyproject.toml: what needs it, and the libraries that are imported."""
_BROUGHT_BY: Final = {"sink": "spark"}
"""By a part of an extra, the whole: reading needs less of it than writing."""


class ExtraMissing(ImportError):
    """An extra is not installed; `str()` is one line: `cause`, and the command that brings it, `cure`."""

    def __init__(self, cause: str, cure: str) -> None:
        super().__init__(f"{cause}: {cure}")
        self.cause = cause
        self.cure = cure


def require(extra: str) -> None:
    """Return when the libraries of an extra can be imported, without importing them; raises ExtraMissing."""
    purpose, libraries = _EXTRAS[extra]
    missing = [name for name in libraries if find_spec(name) is None]
    if missing:
        cure = f"pip install 'strandline[{_BROUGHT_BY.get(extra, extra)}]'"
        raise ExtraMissing(f"{purpose} {', '.join(missing)}", cure)


def end_without(extra: str) -> None:
    """End the program with one line and status 2 when an extra's libraries cannot be imported."""
    try:
        require(extra)
    except ExtraMissing as missing:
        print(f"strandline: {missing.cause}; {missing.cure}", file=sys.stderr)
        sys.exit(2)
