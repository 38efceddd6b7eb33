"""The folder of `--folder`, which the programs have in common."""

from __future__ import annotations

import argparse
from pathlib import Path


def existing_folder(text: str) -> str:
    """The type of the option for argparse. Raises ArgumentTypeError."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(
            f"{text} is no folder: make it (mkdir -p {text}), or name another one"
        )
    return text
