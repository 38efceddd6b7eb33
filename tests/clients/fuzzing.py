"""Mutated requests against a real node, which has real state to lose.

    python -m tests.clients.fuzzing [frames] [seed]

starts three nodes, lets loose the frames on the first, and tells how its memory went and what it closed.
"""

from __future__ import annotations

import asyncio
import random
import struct
import sys
import tempfile
from pathlib import Path

from strandline.node.kafka.wire.server_config import CloseReason
from tests.clients.nodes import closed, left_connections, rss
from tests.cluster.real_cluster import RealCluster, running_cluster
from tests.kafka.wire.fuzz import Outcome, attack, mutate, seeds
from tests.kafka.wire.server_harness import init

_AT_A_TIME = 16
_ROUND = 500
_WITNESS_SECONDS = 10.0


async def fuzz(port: int, frames: int, seed: int) -> Outcome:
    """Each frame on a connection of its own; after every round a witness must still be served."""
    outcome = Outcome()
    rng = random.Random(seed)
    corpus = seeds(rng)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while outcome.frames < frames:
        mutated = [mutate(rng, rng.choice(corpus)) for _ in range(min(_ROUND, frames - outcome.frames))]
        groups = [mutated[start::_AT_A_TIME] for start in range(_AT_A_TIME)]
        await asyncio.gather(*(attack(port, group, outcome) for group in groups))
        writer.write(init(outcome.witnessed))
        size, number = struct.unpack(">ii", await asyncio.wait_for(reader.readexactly(8), _WITNESS_SECONDS))
        await reader.readexactly(size - 4)
        assert number == outcome.witnessed
        outcome.witnessed += 1
    writer.close()
    return outcome


def reasons(cluster: RealCluster, node: int) -> dict[str, int]:
    """How many connections the node has closed, by reason."""
    found = {reason.value: closed(cluster, node, reason.value) for reason in CloseReason}
    return {reason: count for reason, count in found.items() if count}


def main() -> int:
    """Exits 1 when the node met an error it did not expect, or keeps what the frames brought."""
    frames = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    with tempfile.TemporaryDirectory() as folder, running_cluster(Path(folder) / "cluster") as cluster:
        port = cluster.description.nodes[1].ports.kafka
        before = rss(cluster, 1)
        sizes = []
        for part in range(10):
            outcome = asyncio.run(fuzz(port, frames // 10, seed * 1000 + part))
            sizes.append(rss(cluster, 1))
            print(
                f"{(part + 1) * (frames // 10)} frames: {sizes[-1] / 1e6:.1f} MB; of the last "
                f"{outcome.frames}, {outcome.answered} passed, {outcome.dropped} were dropped, "
                f"{outcome.silent} incomplete or slow; witness served {outcome.witnessed} times",
                flush=True,
            )
        left = left_connections(cluster, 1, 0)
        found = reasons(cluster, 1)
        print(
            f"memory: {before / 1e6:.1f} MB before, {sizes[-1] / 1e6:.1f} MB after; {left} connections left"
        )
        print(f"closed: {found}; nodes alive: {sorted(cluster.pids)}")
        log = cluster.description.nodes[1].log.read_text()
        escaped = log.count("Traceback")
        print(f"tracebacks in the log: {escaped}")
        if escaped:
            print(log[log.index("Traceback") - 300 :][:3000])
        return 1 if left or escaped or CloseReason.HANDLER.value in found else 0


if __name__ == "__main__":
    sys.exit(main())
