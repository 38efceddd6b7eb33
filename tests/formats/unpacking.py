"""Unpacks a kept cluster, or a kept bucket, into a folder of a test; a cluster on ports that are free now."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path
from typing import Final

from strandline.cluster.ports import free_ports

KEPT: Final = Path(__file__).parent / "kept"
KEPT_BUCKETS: Final = Path(__file__).parent / "kept_buckets"
_NAME: Final = "cluster"


def unpack(packed: Path, into: Path) -> Path:
    """The cluster's folder, as if it had always lain there."""
    with tarfile.open(packed, "r:xz") as file:
        _extract(file, into)
    folder = into / _NAME
    description = folder / "cluster.json"
    told = json.loads(description.read_text())
    old_folder = told["storage"].removesuffix("/objects")
    ports: dict[str, str] = {}
    chosen = free_ports([node["id"] for node in told["nodes"]])
    for node in told["nodes"]:
        new = chosen[node["id"]]
        for use, port in (("kafka", new.kafka), ("admin", new.admin), ("mesh", new.mesh)):
            ports[str(node[use])] = str(port)
    number = re.compile(r"\b(" + "|".join(ports) + r")\b")
    for path in (description, *folder.glob("node-*.toml")):
        moved = path.read_text().replace(old_folder, str(folder))
        path.write_text(number.sub(lambda found: ports[found[0]], moved))
    return folder


def unpack_bucket(packed: Path, into: Path) -> Path:
    """The folder with the objects."""
    with tarfile.open(packed, "r:xz") as file:
        _extract(file, into)
    return into / "objects"


def _extract(file: tarfile.TarFile, into: Path) -> None:
    if hasattr(tarfile, "data_filter"):
        file.extractall(into, filter="data")
    else:  # Python 3.11.2 and 3.11.3, as Debian 12 has it
        file.extractall(into)
