"""The version of the checks of objects: proofs of another one count for nothing."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Sequence
from types import ModuleType
from typing import Final

from strandline.snapshot import compression, level_one_format, level_zero_format, object_frame, record_fields
from strandline.snapshot.spark.audits import batch_check, batches, level_one_objects, references

_CHECKS: Final = (
    batch_check, batches, level_one_objects, references,
    compression, level_one_format, level_zero_format, object_frame, record_fields,
)  # fmt: skip
"""The modules that decide what is found in an object."""


def _digest(modules: Sequence[ModuleType]) -> str | None:
    digest = hashlib.sha256()
    try:
        for module in modules:
            digest.update(inspect.getsource(module).encode())
    except OSError:
        return None
    return digest.hexdigest()


_LOADED: Final = _digest(_CHECKS)
"""Of the code that this process runs: an upgrade while it runs changes the files, and not what was loaded."""


def checks_version() -> str | None:
    """Digest of the code that decides what is found in an object; None where Python has no source of it.

    A proof of other checks counts for nothing, so that a check that becomes stricter sees all objects again.
    Without a digest nothing tells the checks of one release from another's: then there are no proofs.
    """
    return _LOADED
