"""A configuration that is right, and what becomes of it with a change."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.node.config.node_config import ConfigError, NodeConfig, load
from strandline.statemachine.controller.controller import Controller

EMPTY = Controller(lambda index, captured: None)
"""Of a cluster in which no node has registered."""
GOOD = """
[node]
id = 2
data = "/var/lib/strandline"
[cluster]
id = "flights"
secret = "a long random text 7d1f"
nodes = ["1@127.0.0.1:7101", "2@127.0.0.1:7102", "3@127.0.0.1:7103"]
[storage]
url = "/srv/objects"
"""


def loaded(tmp_path: Path, text: str = GOOD, overrides: tuple[str, ...] = (), **environ: str) -> NodeConfig:
    path = tmp_path / "node.toml"
    path.touch(0o600)
    path.write_text(text)
    return load(str(path), environ, overrides)


def problem(tmp_path: Path, text: str = GOOD, overrides: tuple[str, ...] = (), **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text, overrides, **environ)
    line = str(caught.value)
    assert "\n" not in line
    return line.replace(str(tmp_path), "")
