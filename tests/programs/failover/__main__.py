"""`scripts/failover`: the bare replicated log (`raft`), or whole nodes with Kafka's clients (`cluster`)."""

from __future__ import annotations

import sys

from tests.programs.failover import run
from tests.programs.failover.cluster import run as cluster_run

_USAGE = """\
usage: scripts/failover raft [options]     the replicated log alone, with clients of its own
       scripts/failover cluster [options]  whole nodes: object storage, librdkafka, Spark's audits
Each has --help."""


def main() -> int:
    """Exit status: that of the run; 2 for misuse."""
    match sys.argv[1:]:
        case ["raft", *arguments]:
            return run.main(arguments)
        case ["cluster", *arguments]:
            return cluster_run.main(arguments)
        case ["-h" | "--help"]:
            print(_USAGE)
            return 0
        case _:
            print(_USAGE, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main())
