"""Keeps a cluster of the build that runs it, for later builds to start with.

`python tests/formats/keep.py STRANDLINE FILE` makes a cluster with the `strandline` command at that path,
writes what `contents` says, stops it and packs its folder. Run it with the build before a change of what is
stored; a kept cluster is never made again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from strandline.statemachine.partition.level_one import LEVEL_ONE_PREFIX
from tests.formats import contents

SETTINGS = (
    "level_one.reconcile_seconds=1",
    "compaction.ingest_seconds=1",
    "coordinator.partitions=2",
    # All that is written fits into the logs, and fills them.
    "inline.max_batch_bytes=35000",
    *(f"inline.{name}=268435456" for name in ("partition_bytes", "bytes")),
    *(f"inline.{name}=268435456" for name in ("partition_bytes_per_second", "bytes_per_second")),
)
KEPT_FOLDER = "/kept/cluster"
"""In the place of the folder's own name, which is of another machine."""
LIFTED_SECONDS = 60.0


def keep(command: str, packed: Path) -> None:
    """Make one. Raises CalledProcessError, KafkaException, TimeoutError."""
    with tempfile.TemporaryDirectory(dir=packed.parent) as scratch:
        folder = Path(scratch) / "cluster"

        def strandline(*arguments: str, given: str | None = None) -> str:
            where = ("--cluster", str(folder))
            done = subprocess.run(
                [command, *arguments, *where], input=given, stdout=subprocess.PIPE, text=True
            )
            done.check_returncode()
            return done.stdout

        settings = [part for setting in SETTINGS for part in ("--set", setting)]
        strandline("cluster", "up", "--free-ports", *settings)
        try:
            bootstrap = json.loads((folder / "cluster.json").read_text())["bootstrap"]
            contents.create(bootstrap)
            contents.write(bootstrap, 0)
            strandline("user", "add", contents.USER, given="secret-of-alice\n")
            strandline("quota", "set", "--user", contents.USER, f"producer_byte_rate={contents.QUOTA}")
            contents.commit(bootstrap)
            contents.write_bulk(bootstrap)
            _wait_until_lifted(folder / "objects")
            strandline("checkpoint")
            contents.write(bootstrap, 1)
        finally:
            strandline("cluster", "down")
        for log in folder.glob("node-*.log"):
            log.unlink()
        for path in (folder / "cluster.json", *folder.glob("node-*.toml")):
            path.write_text(path.read_text().replace(str(folder), KEPT_FOLDER))
        # GNU tar leaves holes out; what a node has reserved for its log is one.
        subprocess.run(["tar", "--sparse", "-cJf", packed, "-C", scratch, "cluster"], check=True)
        snapshots = sorted(path.name for path in (folder / "node-1" / "snapshots").rglob("*"))
        print(f"{packed}: {os.path.getsize(packed):,} bytes; snapshots of node 1: {snapshots}")


def _wait_until_lifted(objects: Path) -> None:
    """Until each topic has an object of level one, and local logs had the time for a round."""
    deadline = time.monotonic() + LIFTED_SECONDS
    while len({path.parent for path in objects.glob(f"{LEVEL_ONE_PREFIX}*/*/*")}) < 3:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"level one has too little after {LIFTED_SECONDS:.0f} s: {list(objects.rglob('*'))}"
            )
        time.sleep(0.5)
    time.sleep(5.0)


if __name__ == "__main__":
    keep(sys.argv[1], Path(sys.argv[2]).absolute())
