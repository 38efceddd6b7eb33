"""The process of a version of views, which notes each transaction that it has committed, with its cut."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any, Final
from unittest.mock import patch

from strandline.cluster.view_worker import process
from strandline.cluster.view_worker.version_task import VersionTask
from strandline.snapshot.views.sink import Changes

NOTES: Final = "VIEWS_TOPOLOGIES_NOTES"
"""The file's path, in the environment of nodes."""
_commit = VersionTask.commit


def noted(self: VersionTask, said: Mapping[str, Changes] = {}) -> None:
    """Commit, then note it: one line in one write, which no other process's line gets into."""
    _commit(self, said)
    note: dict[str, Any] = {
        "program": self.program,
        "attempt": self.attempt,
        "live": self.live,
        "phase": self.phase,
        "cut": {f"{topic}-{number}": offset for (topic, number), offset in self.committed.items()},
        "digests": {name: digest.hex() for name, digest in self.digests().items()},
    }
    with open(os.environ[NOTES], "ab", buffering=0) as file:
        file.write(json.dumps(note).encode() + b"\n")


if __name__ == "__main__":
    with patch.object(VersionTask, "commit", noted):
        sys.exit(process.main())
