"""An export that cannot be done as asked."""

from __future__ import annotations


class ExportError(Exception):
    """Ends an export; `str()` is one line: `cause`, and what to do, `cure`."""

    def __init__(self, cause: str, cure: str) -> None:
        super().__init__(f"{cause}: {cure}")
        self.cause = cause
        self.cure = cure

    def __reduce__(self) -> tuple[type[ExportError], tuple[str, str]]:
        return type(self), (self.cause, self.cure)


class TableFailed(ExportError):
    """A table, its catalog or its storage does not answer, or another writer was faster each time.

    It may pass by itself.
    """


class TooManyFolders(ExportError):
    """A unit has more values of the column that its target is partitioned by than files are made of it."""
