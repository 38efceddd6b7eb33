"""The extras of an installation: libraries that a node does without, and what is said without them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

_EXTRAS: Final = {
    "spark": ("reading with Spark needs", ("pyspark", "pyarrow", "numpy", "pandas")),
    "views": ("views need", ("polars", "sqlglot", "xxhash", "pyarrow", "numpy")),
    "report": ("a report with plots needs", ("matplotlib",)),
}
"""By the name of the extra in pyproject.toml: what needs it, and the libraries that are imported."""


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
        raise ExtraMissing(f"{purpose} {', '.join(missing)}", f"pip install 'strandline[{extra}]'")
