"""Everything that has to hold before a change lands, as `scripts/test` and continuous integration run it.

Each step is a tool, run as a person would run it. All of them run even when one fails, so that one run tells
all there is to mend.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).parent.parent
PACKAGES = ("-p", "strandline", "-p", "tests")
SEEDS = 300


@dataclass(frozen=True, slots=True)
class Step:
    """A command, run from the project's folder; it holds when it exits 0."""

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a step ended; `seconds` is wall-clock time."""

    name: str
    ok: bool
    seconds: float


def tool(name: str, *arguments: str) -> tuple[str, ...]:
    """The command of a tool in the environment this runs in, whatever the PATH says."""
    return (str(Path(sys.executable).with_name(name)), *arguments)


def steps(seeds: int, pytest_arguments: list[str], report: Path) -> list[Step]:
    """All of them; pytest writes what became of its tests to `report`."""
    return [
        Step("ruff check", tool("ruff", "check", "--quiet", ".")),
        Step("ruff format", tool("ruff", "format", "--check", "--quiet", ".")),
        Step("mypy --strict", tool("mypy", "--no-error-summary", *PACKAGES)),
        Step("import-linter", tool("lint-imports", "--no-logo")),
        Step("pytest", tool("pytest", f"--junit-xml={report}", *pytest_arguments)),
        Step("simulation of the log", (str(ROOT / "scripts" / "simulate"), "--seeds", str(seeds))),
        Step(
            "simulation of whole nodes",
            (str(ROOT / "scripts" / "simulate"), "--whole", "--seeds", str(seeds // 5)),
        ),
        Step(
            "simulation of transactions",
            (str(ROOT / "scripts" / "simulate"), "--transactions", "--seeds", str(seeds // 15)),
        ),
    ]


def run(step: Step, output: TextIO) -> Outcome:
    started = time.perf_counter()
    done = subprocess.run(step.command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, check=False)
    return Outcome(step.name, done.returncode == 0, round(time.perf_counter() - started, 2))


def skipped_tests(report: Path) -> int:
    """How many tests pytest skipped, by its JUnit report; 0 when it did not come to write one."""
    if not report.exists():
        return 0
    return sum(int(suite.get("skipped", "0")) for suite in ElementTree.parse(report).iter("testsuite"))


def main() -> int:
    """Run every step; exits 1 when one does not hold. With --json the tools' own output goes to stderr."""
    parser = argparse.ArgumentParser(prog="scripts/test", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="end with one JSON object, not a summary line")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds to simulate (default: %(default)s)")
    parser.add_argument("pytest", nargs="*", metavar="PYTEST", help="arguments for pytest, after --")
    arguments = parser.parse_args()
    output = sys.stderr if arguments.json else sys.stdout

    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "pytest.xml")
        todo = steps(arguments.seeds, arguments.pytest, report)
        for number, step in enumerate(todo, 1):
            title = f"[{number}/{len(todo)}] {step.name}"
            print(f"{title} ...", file=output, flush=True)
            outcome = run(step, output)
            outcomes.append(outcome)
            ended = "ok" if outcome.ok else "FAILED"
            print(f"{title} {ended}, {outcome.seconds:.1f} s", file=output, flush=True)
        skipped = skipped_tests(report)

    failed = [outcome.name for outcome in outcomes if not outcome.ok]
    seconds = round(sum(outcome.seconds for outcome in outcomes), 2)
    if arguments.json:
        told = [asdict(outcome) for outcome in outcomes]
        print(json.dumps({"ok": not failed, "seconds": seconds, "skipped_tests": skipped, "steps": told}))
    elif failed:
        print(f"test failed: {', '.join(failed)} ({len(failed)} of {len(todo)} steps), {seconds:.1f} s")
    else:
        noted = f" ({skipped} tests skipped: why is above)" if skipped else ""
        print(f"test ok: {len(todo)} steps{noted}, {seconds:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
