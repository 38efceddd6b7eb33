"""`scripts/bench far`: Strandline on a store that is far away: an S3 server behind a delay of 60 to 140 ms.

One command builds the server once, starts it and the proxy that holds its answers back, measures three nodes,
and prints each figure beside what is wanted. The server, the proxy, the nodes and the client share this
machine, so what a gigabyte costs the nodes is told apart from the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaException

from strandline.cluster.failure import CommandFailed
from tests.peers.s3_server import NoServer, S3Server, program
from tests.programs.bench import kafka_measure
from tests.programs.bench.far_proxy import FarProxy
from tests.programs.bench.kafka_measure import FULL, QUICK, TINY, Amount, Servers
from tests.programs.bench.measures import Result
from tests.programs.bench.report import plain, shown, table
from tests.programs.bench.strandline_cluster import StrandlineCluster
from tests.programs.folder_option import existing_folder

LARGE_BYTES = 64 * 1024
"""A batch that is no inline one: it pays for an upload."""
PUT_WINDOW = 0.25
SCALES = {"full": FULL, "quick": QUICK, "tiny": TINY}


class FarCluster(StrandlineCluster):
    """Three nodes on the server behind the proxy."""

    def metrics(self, name: str) -> list[float]:
        """The samples of a metric that begin with `name`, one for each node: the sum of those of a node."""
        found = []
        for node in self._local.description.nodes.values():
            with urllib.request.urlopen(f"http://{node.admin}/metrics", timeout=10) as answer:
                text = answer.read().decode()
            lines = [line for line in text.splitlines() if line.startswith(name)]
            found.append(sum(float(line.rpartition(" ")[2]) for line in lines))
        return found


Work = Callable[[FarCluster, Amount], Result]
PUTS = 'strandline_store_requests_total{operation="put"}'
LEVEL_ZERO_BYTES = 'strandline_storage_bytes{state="level_zero"}'
LIFTED_SECONDS = 240.0
"""`level_one.reconcile_seconds`, twice, and the work itself; `--set` it lower to wait less."""


def little(peer: FarCluster, amount: Amount) -> Result:
    """200 a second, and the puts of the node that puts most meanwhile, for each quarter of a second."""
    before, began = peer.metrics(PUTS), time.perf_counter()
    result = kafka_measure.latency(peer, amount)
    seconds = time.perf_counter() - began
    most = max(after - early for after, early in zip(peer.metrics(PUTS), before, strict=True))
    result.figures["puts"] = most / (seconds / PUT_WINDOW)
    return result


def large(peer: FarCluster, amount: Amount) -> Result:
    """Batches that pay for an upload: 10 a second, each alone."""
    return kafka_measure.latency(peer, replace(amount, rate=10), size=LARGE_BYTES)


def mixed(peer: FarCluster, amount: Amount) -> Result:
    """Small ones at 200 a second while uploads are slow: behind a gigabyte that is being lifted, say."""
    filled = kafka_measure.fill(peer, replace(amount, megabytes=amount.megabytes / 4), size=1000)[2]
    result = kafka_measure.latency(peer, amount)
    return Result(result.figures, result.notes, filled.problems + result.problems)


def one_producer(peer: FarCluster, amount: Amount, *, idempotent: bool = True) -> Result:
    """One producer as fast as it goes, twice: the window of uploads opens in the first."""
    _, _, cold = kafka_measure.fill(peer, amount, size=1000, idempotent=idempotent)
    _, _, warm = kafka_measure.fill(peer, amount, size=1000, idempotent=idempotent)
    figures = {**warm.figures, "rate_cold": cold.figures["rate"]}
    return Result(figures, problems=cold.problems + warm.problems)


def behind(peer: FarCluster, amount: Amount) -> Result:
    """One partition, read from its beginning once all of it lies in level one; no node has any of it."""
    one = replace(amount, partitions=1)
    name, count, result = kafka_measure.fill(peer, one, size=1000)
    deadline = time.monotonic() + LIFTED_SECONDS
    while sum(peer.metrics(LEVEL_ZERO_BYTES)):
        if time.monotonic() > deadline:
            return Result(problems=[f"level zero still has records after {LIFTED_SECONDS:.0f} s"])
        time.sleep(1.0)
    processor = Servers(peer).processor()
    rate, problems = kafka_measure.read_back(peer, name, 1, count, 1000)
    used = Servers(peer).processor() - processor
    figures = {"rate": rate, "cpu_gb": used / (max(count, 1) * 1000 / 1e9), "rss": Servers(peer).memory()}
    return Result(figures, problems=result.problems + problems)


WORK: dict[str, tuple[str, Work]] = {
    "latency": ("200 a second", little),
    "large": ("64 KiB batches, 10 a second", large),
    "e2e": ("produce to consume", kafka_measure.end_to_end),
    "throughput": ("one producer, 1 kB records", one_producer),
    "pipelined": (
        "the same, not idempotent: many requests under way",
        partial(one_producer, idempotent=False),
    ),
    "mixed": ("200 a second, behind a quarter of that", mixed),
    "consume": ("read back, 1 kB", kafka_measure.consume),
    "behind": ("read one partition of level one", behind),
}
"""By the word for --cases."""


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the table. `wanted` is the bound, None where none was named."""

    case: str
    what: str
    figure: str
    unit: str
    wanted: float | None = None
    least: bool = False

    def holds(self, value: float | None) -> bool | None:
        """Whether the figure is what is wanted; None where nothing is, or nothing was measured."""
        if self.wanted is None or value is None:
            return None
        return value >= self.wanted if self.least else value <= self.wanted


LINES = (
    Line("latency", "p50", "p50", "s", 0.005),
    Line("latency", "p99", "p99", "s", 0.025),
    Line("latency", "puts of a node in 250 ms", "puts", "", 1.0),
    Line("latency", "processor, of one core, 3 nodes", "cpu", "core"),
    Line("large", "p50", "p50", "s"),
    Line("large", "p99", "p99", "s"),
    Line("e2e", "p50", "p50", "s"),
    Line("e2e", "p99", "p99", "s", 0.040),
    Line("throughput", "written, cold", "rate_cold", "B/s"),
    Line("throughput", "written, warm", "rate", "B/s", 100e6, least=True),
    Line("throughput", "servers' processor a GB", "cpu_gb", "s"),
    Line("throughput", "memory, 3 nodes", "rss", "B"),
    Line("pipelined", "written, cold", "rate_cold", "B/s"),
    Line("pipelined", "written, warm", "rate", "B/s", 100e6, least=True),
    Line("pipelined", "servers' processor a GB", "cpu_gb", "s"),
    Line("mixed", "p50", "p50", "s", 0.005),
    Line("mixed", "p99", "p99", "s", 0.025),
    Line("consume", "read", "rate", "B/s"),
    Line("consume", "servers' processor a GB", "cpu_gb", "s"),
    Line("behind", "read", "rate", "B/s"),
    Line("behind", "servers' processor a GB", "cpu_gb", "s"),
    Line("behind", "memory, 3 nodes", "rss", "B"),
)


def measure(peer: FarCluster, cases: Sequence[str], amount: Amount) -> dict[str, Result]:
    """All cases on a cluster that runs; what goes wrong is told and ends its case."""
    found: dict[str, Result] = {}
    for case in cases:
        title, work = WORK[case]
        print(f"{title} ...", file=sys.stderr, flush=True)
        began, processor = time.monotonic(), Servers(peer).processor()
        try:
            found[case] = work(peer, amount)
        except (KafkaException, TimeoutError, CommandFailed, ValueError) as error:
            found[case] = Result(problems=[repr(error)])
        busy = (Servers(peer).processor() - processor) / (time.monotonic() - began)
        found[case].figures["busy"] = busy
    return found


def lines(cases: Sequence[str], found: dict[str, Result]) -> list[list[str]]:
    """The cells of the table: section, figure, what is wanted, what is, and the word."""
    made, last = [], ""
    for line in LINES:
        if line.case not in cases:
            continue
        value = found[line.case].figures.get(line.figure)
        word = {None: "", True: "holds", False: "does not hold"}[line.holds(value)]
        title = WORK[line.case][0] if line.case != last else ""
        made.append([title, line.what, shown(line.wanted, line.unit), shown(value, line.unit), word])
        last = line.case
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the measures; exits 1 when one of them went wrong. A figure that is not what is wanted is told."""
    options = parse(arguments)
    amount = SCALES[options.scale]
    cases = tuple(case for case in WORK if case in (options.cases or WORK))
    began, load = time.monotonic(), os.getloadavg()[0]
    try:
        built = None if options.server == "moto" else program()
    except NoServer as error:
        print(f"bench far failed: {error}; or --server moto", file=sys.stderr)
        return 1
    with ExitStack() as stack:
        scratch = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="strandline-bench-", dir=options.folder)
        )
        server = S3Server(Path(scratch) / "objects", built)
        stack.callback(server.close)
        proxy = FarProxy(server.port, options.ms, options.jitter)
        stack.callback(proxy.close)
        settings = [*server.options(proxy.port), *options.settings]
        peer = FarCluster(Path(scratch) / "cluster", settings, storage=server.url)
        stack.callback(peer.down)
        peer.up()
        found = measure(peer, cases, amount)
    problems = [f"{WORK[case][0]}: {one}" for case, result in found.items() for one in result.problems]
    seconds = time.monotonic() - began
    if options.json:
        print(json.dumps({"ok": not problems, "seconds": seconds, "load_average": load, **plain(found)}))
        return 1 if problems else 0
    print(
        f"Three nodes, three replicas, acks=all, on {server.name} behind {options.ms:g} ms and exponential"
        f" {options.jitter:g} ms, all on the same {os.cpu_count()} cores; load average before {load:.1f}.\n"
    )
    print(table(["", "", "wanted", "is", ""], lines(cases, found)))
    for case, result in found.items():
        print(f"- {WORK[case][0]}: the nodes took {result.figures['busy']:.0%} of a core")
    for problem in problems:
        print(f"- FAILED: {problem}")
    print(f"bench far {'failed' if problems else 'ok'}: {len(cases)} cases, {seconds:.0f} s")
    return 1 if problems else 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench far", description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", nargs="+", choices=WORK, metavar="CASE", help=f"of {', '.join(WORK)}")
    parser.add_argument("--ms", type=float, default=60.0, help="by which answers are held back (%(default)g)")
    parser.add_argument("--jitter", type=float, default=40.0, help="mean of what comes on top (%(default)g)")
    parser.add_argument(
        "--server", choices=("s3s-fs", "moto"), default="s3s-fs",
        help="s3s-fs is built by cargo once; moto is slower (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="of the nodes",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument(
        "--folder", type=existing_folder, default="/var/tmp", help="on a real disk (default: %(default)s)"
    )
    size = parser.add_mutually_exclusive_group()
    for name, text in (("quick", "a quarter of everything"), ("tiny", "only shows that it works")):
        size.add_argument(
            f"--{name}", dest="scale", action="store_const", const=name, default="full", help=text
        )
    return parser.parse_args(arguments)
