"""Strandline: a Kafka-compatible streaming log whose records lie in object storage.

`local_cluster` starts a cluster for a test. `strandline.spark` and `strandline.audit` read what a cluster has
stored. The `strandline` command, also as `python -m strandline`, does the rest.

Importing this package imports nothing else: what it names is imported when it is used.
"""

from __future__ import annotations

__all__ = ["ClusterError", "TemporaryCluster", "__version__", "local_cluster"]

TYPE_CHECKING = False  # type checkers go by the name; importing typing would take longer than all of this
if TYPE_CHECKING:
    from strandline.cluster.temporary import ClusterError, TemporaryCluster, local_cluster

    __version__: str
else:  # not for type checkers, which would take every name for one that is there

    def __getattr__(name: str) -> object:
        """Import what is asked for the first time (PEP 562); the version is that of the installation."""
        if name == "__version__":
            from importlib.metadata import version

            found = version("strandline")
        elif name in __all__:
            from strandline.cluster import temporary

            found = getattr(temporary, name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found
