"""A rolling upgrade from an earlier build to this one, while clients write.

    scripts/rolling-upgrade --from COMMIT

Three real nodes run the build of a commit of this repository. One after the other is started with this tree,
then with the earlier build again, as after second thoughts, and with this tree at last. Then the feature
level is raised, and all nodes restart once more. Two producers, one of them transactional, write throughout.
Nothing acknowledged may be lost, doubled, out of order or torn.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from strandline.cluster.admin_client import first_answer
from strandline.cluster.failure import CommandFailed
from strandline.cluster.local import LocalCluster
from strandline.cluster.ports import free_ports
from tests.programs.folder_option import existing_folder
from tests.programs.rolling_upgrade.load import Load, faults

TREE: Final = Path(__file__).parents[3]
MODULE: Final = "strandline.node.process"
SETTINGS: Final = ("coordinator.partitions=2", "level_one.reconcile_seconds=2", "inline.seconds=2")
PACE_SECONDS: Final = 4.0
"""Of load after each step."""
GAP_SECONDS: Final = 10.0
"""Without an acknowledgement, at most."""


def program(tree: Path) -> tuple[str, ...]:
    """What starts a node of the build in this folder, and its workers with the same."""
    text = (
        f"import os, runpy, sys; os.environ['PYTHONPATH'] = {str(tree)!r}; sys.path.insert(0, {str(tree)!r});"
        f" runpy.run_module({MODULE!r}, run_name='__main__', alter_sys=True)"
    )
    return sys.executable, "-P", "-c", text


def unpack(commit: str, into: Path) -> str:
    """The build of a commit, and the commit's full name. Raises CommandFailed."""
    found = subprocess.run(
        ["git", "-C", TREE, "rev-parse", "--verify", f"{commit}^{{commit}}"], capture_output=True, text=True
    )
    if found.returncode != 0:
        raise CommandFailed(
            f"{commit} is no commit of this repository",
            "name one that `git log` shows; a shallow clone has only its newest: git fetch --unshallow",
        )
    name = found.stdout.strip()
    packed = subprocess.run(["git", "-C", TREE, "archive", name], capture_output=True, check=True).stdout
    into.mkdir()
    subprocess.run(["tar", "-x", "-C", into], input=packed, check=True)
    return name


def upgrade(earlier: Path, folder: Path) -> tuple[dict[str, object], bool]:
    """Do it; the figures, and whether all is well."""
    before, after = (LocalCluster(folder, program=program(tree)) for tree in (earlier, TREE))
    try:
        before.up(3, choose_ports=free_ports, settings=SETTINGS)
        description = before.description
        nodes = sorted(description.nodes)
        began = time.monotonic()
        with Load(description.bootstrap) as load:
            time.sleep(PACE_SECONDS)
            for node in nodes:
                for cluster in (after, before, after):
                    cluster.restart(node)
                    time.sleep(PACE_SECONDS)
            where = [node.admin for node in after.description.nodes.values()]
            raised = first_answer(where, "POST", "/api/cluster/upgrade", {}, timeout=20.0)
            time.sleep(PACE_SECONDS)
            after.restart()
            time.sleep(PACE_SECONDS)
        found = faults(description.bootstrap, load.written)
        gap = load.written.longest_gap()
        figures: dict[str, object] = {
            "records": len(load.written.records),
            "transactions": len(load.written.committed),
            **asdict(found),
            "failed": load.written.failed[:3],
            "longest_gap": round(gap, 2),
            "feature_level": raised["feature_level"],
            "was": raised["before"],
            "seconds": round(time.monotonic() - began, 1),
        }
        well = not any(asdict(found).values()) and not load.written.failed and gap < GAP_SECONDS
        return figures, well and bool(load.written.committed)
    finally:
        after.down()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/rolling-upgrade", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--from", dest="commit", required=True, help="the earlier build: a commit or tag")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a line")
    parser.add_argument(
        "--folder", type=existing_folder, default="/var/tmp", help="on a real disk (default: /var/tmp)"
    )
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="strandline-upgrade-", dir=options.folder) as scratch:
        try:
            commit = unpack(options.commit, Path(scratch) / "earlier")
            figures, well = upgrade(Path(scratch) / "earlier", Path(scratch) / "cluster")
        except CommandFailed as error:
            print(f"rolling-upgrade: {error}", file=sys.stderr)
            return 1
    told = {"from": commit, **figures, "ok": well}
    print(json.dumps(told) if options.json else f"rolling-upgrade {'ok' if well else 'FAILED'}: {told}")
    return 0 if well else 1
