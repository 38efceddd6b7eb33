"""Everything that has to hold before a change lands, as `scripts/test` and continuous integration run it.

Each step is a tool, run as a person would run it. All of them run even when one fails, so that one run tells
all there is to mend. pytest has one worker more than there are cores, and the other steps have what its
waiting leaves of the processor: each is told of when it ends, between the lines of pytest.

With --changed only the tests that a change touches are run (`tests.changed` says how they are chosen).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from tests import ROOT
from tests.changed import WHOLE, Choice, changed_files, choose
from tests.units import SECONDS, SET_UP, is_shared_out, recorded_seconds

PACKAGES = ("-p", "pyspark_strandline", "-p", "strandline", "-p", "tests")
SEEDS = 150
CHANGED_SEEDS = 30
WORKERS = (os.cpu_count() or 1) + 1
"""Tests of real nodes wait for half of their time: with a worker for each core the cores would be idle."""
_NICE = 10
"""Of the steps beside pytest: its tests have deadlines, and they have none."""

_interrupted = threading.Event()
"""By Ctrl-C, which the steps that run receive as well: each ends by itself, with what it has started."""


@dataclass(frozen=True, slots=True)
class Step:
    """A command, run from the project's folder; it holds when it exits 0."""

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Simulator:
    """A simulator, which runs a `divisor`-th of the seeds that are asked for.

    Its tests run `tested` of the seeds below `first`, and look closer at them.
    """

    name: str
    options: tuple[str, ...]
    divisor: int
    first: int
    tested: int


SIMULATORS = (
    Simulator("the log", (), 1, 8, 8),
    Simulator("whole nodes", ("--whole",), 5, 8, 8),
    Simulator("transactions", ("--transactions",), 15, 20, 7),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a step ended; `seconds` is wall-clock time."""

    name: str
    ok: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """What pytest wrote of its tests."""

    passed: int
    skipped: int
    seconds: dict[str, float]
    """Of each file; of each set-up that files share; of each test that a worker takes by itself."""


def tool(name: str, *arguments: str) -> tuple[str, ...]:
    """The command of a tool in the environment this runs in, whatever the PATH says."""
    return (str(Path(sys.executable).with_name(name)), *arguments)


def static_steps() -> list[Step]:
    """What looks at the sources alone."""
    return [
        Step("ruff check", tool("ruff", "check", "--quiet", ".")),
        Step("ruff format", tool("ruff", "format", "--check", "--quiet", ".")),
        Step("import-linter", tool("lint-imports", "--no-logo")),
        Step("mypy --strict", tool("mypy", "--no-error-summary", *PACKAGES)),
    ]


def simulations(seeds: int, *, with_all_tests: bool) -> list[Step]:
    """The simulators, each with its share of the seeds, but those that their own tests run."""
    steps = []
    for simulator in SIMULATORS:
        count = seeds // simulator.divisor - (simulator.tested if with_all_tests else 0)
        range_of_seeds = ("--from", str(simulator.first), "--seeds", str(max(1, count)))
        command = (str(ROOT / "scripts" / "simulate"), *simulator.options, *range_of_seeds)
        steps.append(Step(f"simulation of {simulator.name}", command))
    return steps


def pytest_step(workers: int, arguments: Sequence[str], report: Path) -> Step:
    """pytest, which writes what became of its tests to `report`."""
    shared = ("-n", str(workers)) if workers > 1 else ()
    return Step("pytest", tool("pytest", f"--junit-xml={report}", *shared, *arguments))


def environment() -> dict[str, str]:
    """Ours, but bytecode may be written: else hundreds of processes compile all they import, for minutes."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def run(step: Step, output: TextIO, nice: int = 0) -> Outcome:
    """Run a step to its end; a step that has not begun when Ctrl-C is pressed fails at once."""
    if _interrupted.is_set():
        return Outcome(step.name, False, 0.0)
    command = ("nice", "-n", str(nice), *step.command) if nice else step.command
    started = time.perf_counter()
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), stdout=output, stderr=subprocess.STDOUT, check=False
    )
    return Outcome(step.name, done.returncode == 0, round(time.perf_counter() - started, 2))


def run_all(main: Step | None, others: Sequence[Step], output: TextIO) -> list[Outcome]:
    """Run `main` with its output as it comes, and the others beside it, each told of when it has ended."""
    count = len(others) + (main is not None)

    def run_beside(number: int, step: Step) -> Outcome:
        with tempfile.TemporaryFile("w+", errors="replace") as told:
            outcome = run(step, told, _NICE)
            told.seek(0)
            print(f"\n{_title(number, count, outcome)}\n{told.read()}", end="", file=output, flush=True)
        return outcome

    with ThreadPoolExecutor(1) as thread:
        running = [thread.submit(run_beside, number, step) for number, step in enumerate(others, 1)]
        outcomes = []
        if main is not None:
            outcomes.append(run(main, output))
            print(_title(count, count, outcomes[0]), file=output, flush=True)
        return [future.result() for future in running] + outcomes


def _title(number: int, count: int, outcome: Outcome) -> str:
    return f"[{number}/{count}] {outcome.name} {'ok' if outcome.ok else 'FAILED'}, {outcome.seconds:.1f} s"


def read_report(path: Path) -> Report:
    """Read pytest's JUnit report; nothing of anything when it did not come to write one."""
    if not path.exists():
        return Report(0, 0, {})
    counts: defaultdict[str, int] = defaultdict(int)
    seconds: defaultdict[str, float] = defaultdict(float)
    for suite in ElementTree.parse(path).iter("testsuite"):
        for name in ("tests", "skipped", "failures", "errors"):
            counts[name] += int(suite.get(name, "0"))
        for case in suite.iter("testcase"):
            words = case.get("classname", "").split(".")
            # Classes of tests follow the names of folders and of the file.
            length = next((n for n, word in enumerate(words, 1) if word.startswith("test_")), len(words))
            file, took = "/".join(words[:length]) + ".py", float(case.get("time", "0"))
            for shared in case.iter("property"):
                if (name := shared.get("name", "")).startswith(SET_UP):
                    seconds[name.removeprefix(SET_UP)] += float(shared.get("value", "0"))
                    took -= float(shared.get("value", "0"))
            seconds[file] += took
            if is_shared_out(file):
                seconds["::".join([file, *words[length:], case.get("name", "")])] = took
    passed = counts["tests"] - counts["skipped"] - counts["failures"] - counts["errors"]
    return Report(passed, counts["skipped"], dict(seconds))


def record(report: Report, before: Mapping[str, float]) -> None:
    """Keep how long all took, by which workers and --changed order it; what did not run is as `before`."""
    ran = {name.partition("::")[0] for name in report.seconds}
    kept = {name: took for name, took in before.items() if name.partition("::")[0] not in ran}
    kept |= {name: round(took, 1) for name, took in report.seconds.items() if took >= 1 or "::" not in name}
    SECONDS.write_text(json.dumps(dict(sorted(kept.items())), indent=2) + "\n")


def tell(choice: Choice, output: TextIO) -> None:
    """What is run, and why."""
    for line in choice.why:
        print(f"changed: {line}", file=output)
    for path in choice.left_out:
        print(f"changed: left out: {path}", file=output)
    if choice.tests is None:
        print("changed: everything is run", file=output)
    else:
        print(
            f"changed: {len(choice.tests)} files are run: {' '.join(choice.tests)}", file=output, flush=True
        )


def main() -> int:
    """Run every step; exits 1 when one does not hold. With --json the tools' own output goes to stderr."""
    parser = argparse.ArgumentParser(prog="scripts/test", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="end with one JSON object, not a summary line")
    parser.add_argument("--changed", action="store_true", help="only the tests that a change touches")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds to simulate (default: %(default)s)")
    parser.add_argument(
        "--workers",
        type=int,
        default=WORKERS,
        help="processes of pytest (default: %(default)s, one more than cores)",
    )
    parser.add_argument(
        "--record", action="store_true", help="keep in tests/seconds.json how long the tests took that ran"
    )
    parser.add_argument("pytest", nargs="*", metavar="PYTEST", help="arguments for pytest, after --")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, lambda *_: _interrupted.set())
    output = sys.stderr if arguments.json else sys.stdout
    chosen, seeds = list(arguments.pytest), arguments.seeds
    choice = choose(*changed_files()) if arguments.changed else WHOLE
    if arguments.changed:
        tell(choice, output)
    if choice.tests is not None:
        chosen += choice.tests
        chosen += [f"--deselect={test}" for test in choice.deselected]
        seeds = min(seeds, CHANGED_SEEDS)
    others = static_steps() + (
        simulations(seeds, with_all_tests=choice.tests is None) if choice.simulations else []
    )

    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pytest.xml")
        pytest = None if choice.tests == () else pytest_step(arguments.workers, chosen, path)
        outcomes = run_all(pytest, others, output)
        report = read_report(path)
    seconds = round(time.perf_counter() - started, 2)
    if arguments.record:
        # After a whole run nothing stays of files that are gone.
        record(report, recorded_seconds() if arguments.pytest else {})

    failed = [outcome.name for outcome in outcomes if not outcome.ok]
    if arguments.json:
        told = {
            "ok": not failed,
            "seconds": seconds,
            "passed_tests": report.passed,
            "skipped_tests": report.skipped,
            "steps": [asdict(outcome) for outcome in outcomes],
        }
        print(json.dumps(told))
    elif failed:
        print(f"test failed: {', '.join(failed)} ({len(failed)} of {len(outcomes)} steps), {seconds:.1f} s")
    else:
        noted = f", {report.skipped} skipped (why is above)" if report.skipped else ""
        print(f"test ok: {len(outcomes)} steps, {report.passed} passed{noted}, {seconds:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
