"""The paths of files that a configuration names: certificates, keys, and the keys of tokens."""

from __future__ import annotations

import os
from typing import Any

from strandline.node.config.values import some_text


def file_path(value: Any) -> str:
    """The absolute path of a file."""
    path = os.path.expanduser(some_text(value))
    if not os.path.isabs(path):
        raise ValueError(f"{value!r} is relative to wherever the node is started: write an absolute path")
    return path
