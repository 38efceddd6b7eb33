"""Strandline: a Kafka-compatible streaming log whose records lie in object storage.

`local_cluster` starts a cluster for a test. `strandline.spark` and `strandline.audit` read what a cluster has
stored. The `strandline` command, also as `python -m strandline`, does the rest.

Importing this package imports nothing else: what it names is imported when it is used.
"""

from __future__ import annotations

__all__ = ["__version__"]

__version__: str

TYPE_CHECKING = (
    False  # for type checkers, which go by the name; importing typing takes longer than all of this
)
if not TYPE_CHECKING:  # they would take every name for one that is there

    def __getattr__(name: str) -> object:
        """Import what is asked for the first time (PEP 562); the version is that of the installation."""
        if name == "__version__":
            from importlib.metadata import version

            found = version("strandline")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found
