"""Keeps the storage of a cluster of the build that runs it, for later builds to restore from its tail point.

`python -m tests.formats.keep_bucket STRANDLINE FILE` makes a cluster with the `strandline` command at that
path, writes what `contents` says, waits until a tail point has it, stops the cluster and packs its objects.
Run it with the build before a change of what tails or tail points hold; a kept bucket is never made again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from strandline.snapshot.tail_point import parse_tail_point_name
from tests.formats import contents

SETTINGS = (
    # Without points of documents: what is restored is in tails alone.
    "checkpoints.interval=0",
    "publish.seconds=2",
    "level_one.reconcile_seconds=1",
    "coordinator.partitions=2",
)
POINT_SECONDS = 60.0
COMMITS = 300


def keep(command: str, packed: Path) -> None:
    """Make one. Raises CalledProcessError, KafkaException, TimeoutError."""
    with tempfile.TemporaryDirectory(dir=packed.parent) as scratch:
        folder = Path(scratch) / "cluster"

        def strandline(*arguments: str) -> None:
            subprocess.run([command, *arguments, "--cluster", str(folder)], check=True)

        settings = [part for setting in SETTINGS for part in ("--set", setting)]
        strandline("cluster", "up", "--free-ports", *settings)
        try:
            bootstrap = json.loads((folder / "cluster.json").read_text())["bootstrap"]
            contents.create(bootstrap)
            contents.write(bootstrap, 0)
            contents.commit(bootstrap, COMMITS)
            _wait_for_point(folder / "objects")
            contents.write(bootstrap, 1)
            _wait_for_point(folder / "objects")
        finally:
            strandline("cluster", "down")
        with tarfile.open(packed, "w:xz") as file:
            file.add(folder / "objects", "objects")
        print(f"{packed}: {os.path.getsize(packed):,} bytes")


def _wait_for_point(objects: Path) -> None:
    """Until there is a tail point that was taken from now on."""
    since_ms = time.time() * 1000
    deadline = time.monotonic() + POINT_SECONDS
    while not any(
        point.taken_ms > since_ms
        for path in objects.glob("restore/*/tails/*")
        if (point := parse_tail_point_name(str(path.relative_to(objects)))) is not None
    ):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no tail point within {POINT_SECONDS:.0f} s")
        time.sleep(0.2)


if __name__ == "__main__":
    keep(sys.argv[1], Path(sys.argv[2]).absolute())
