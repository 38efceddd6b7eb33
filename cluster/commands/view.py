"""`strandline view`: programs of views: plans, changes, and how they go."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from strandline.cluster.admin_client import AdminClient, Unreachable, first_answer
from strandline.cluster.commands.view_inputs import check_compacted, inputs
from strandline.cluster.commands.view_plan import plan, read_program, require_views
from strandline.cluster.failure import FAILED, MISUSED, CommandFailed
from strandline.cluster.output import Json, escaped, plural, show, table
from strandline.cluster.target import Admin, Cluster, target

app = typer.Typer(help="Views: queries over topics, kept up to date.", no_args_is_help=True)

WAIT_SECONDS: Final = 0.1
"""Between two looks at a program that is waited for."""
BEHIND_SECONDS: Final = 5.0
"""By then the node that answers knows of an attempt that another node began."""


app.command()(plan)


@app.command()
def apply(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A program: a file of CREATE TABLE and CREATE VIEW statements."),
    ],
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The program's name. Default: the file's, without suffix."),
    ] = None,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, max=86400, help="Wait until the views are live.")
    ] = 0.0,
    admin: Admin = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Create a program's views, or put this version in the place of the one that is live.

    The new version is filled out of sight while the old one goes on. Then all its views appear at one moment,
    and those that went disappear. Exits with status 2 if the program is refused: nothing has changed then.

    \b
    Examples:
      strandline view apply delays.sql --wait 60
      strandline view apply delays.sql --name flights
    """
    require_views()
    content, program = read_program(file, as_json)
    where = target(admin=admin, folder=cluster)
    name = file.stem if name is None else name
    from strandline.statemachine.views.identity import digest

    views = [
        {
            "view": view.name,
            "topic": view.topic,
            "partitions": view.sink.partitions,
            "sink": digest(view.sink),
        }
        for view in program.views
        if view.sink is not None
    ]
    _check_size(file, content, len(views))
    check_compacted(where.admin, program)
    body = {"program": name, "text": content, "views": views, "inputs": inputs(program)}
    # The node that runs the program knows whether it has room for another version.
    hosts = _host_first(where.admin, name)
    answer = first_answer(hosts, "POST", "/api/views", body, timeout=40.0, refused=MISUSED)
    if wait:
        _wait(where.admin, name, answer["attempt"], wait)
        done = "live"
    elif _is_live(where.admin, name, answer["attempt"]):
        done = "live, and nothing is to be filled"
    else:
        done = f"begun as attempt {answer['attempt']}: see `strandline view status {name}`"
    show(as_json, answer, f"program {name}: {done}")


@app.command("list")
def list_programs(admin: Admin = None, cluster: Cluster = None, as_json: Json = False) -> None:
    """List programs and their views.

    \b
    Example:
      strandline view list
    """
    programs = first_answer(target(admin=admin, folder=cluster).admin, "GET", "/api/views")["programs"]
    rows = [
        (each["name"], _number(each["live"]), _number(each["next"]), ", ".join(_views(each)), each["stopped"])
        for each in programs
    ]
    show(as_json, {"programs": programs}, table(("PROGRAM", "LIVE", "NEXT", "VIEWS", "STOPPED"), rows))


@app.command("show")
def show_program(
    name: Annotated[str, typer.Argument(metavar="PROGRAM")],
    admin: Admin = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Print the text of a program's live version, or of the first one while that is filled.

    \b
    Example:
      strandline view show delays > delays.sql
    """
    program = _find(first_answer(target(admin=admin, folder=cluster).admin, "GET", "/api/views"), name)
    version = program["live"] or program["next"]
    if version is None:
        raise CommandFailed(f"program {name} has no version: {program['ended']}", "apply another", FAILED)
    show(as_json, program, version["text"].rstrip("\n"))


@app.command()
def status(
    name: Annotated[str, typer.Argument(metavar="PROGRAM")],
    admin: Admin = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Show how a program goes: its versions, what runs them, how far they are.

    Exits with status 1 if the program has stopped.

    \b
    Example:
      strandline view status delays
    """
    addresses = target(admin=admin, folder=cluster).admin
    program = _find(first_answer(addresses, "GET", "/api/views"), name)
    running, problems = _running(addresses, name)
    rows = [
        (
            "live" if each["live"] else "next", each["node"], each["process"], each["status"].get("phase"),
            each["status"].get("records"), each["status"].get("written"), each["lag"],
            each["status"].get("rows"), each["starts"],
        )
        for each in running
    ]  # fmt: skip
    head = [f"program {name}: version {_number(program['live']) or '-'} live"]
    if program["next"]:
        head.append(
            f"version {program['next']['number']} is being filled, attempt {program['next']['attempt']}"
        )
    head += [_progress(each) for each in running if not each["live"]]
    head += [
        f"the cutover's pause was {each['status']['pause_seconds']:.3f} s"
        for each in running
        if "pause_seconds" in each["status"]
    ]
    head += [f"stopped: {program['stopped']}"] if program["stopped"] else []
    head += [f"the last attempt ended: {program['ended']}"] if program["ended"] else []
    head += [
        f"a process of the {'live' if each['live'] else 'next'} version failed on node {each['node']}, "
        f"{each['failures']} did: {each['failure']}"
        for each in running
        if each["failure"]
    ]
    # Only the nodes that have a problem cannot run it; each may be the one that is to.
    head += [f"node {node} can run no program: {problem}" for node, problem in problems.items()]
    listed = table(
        ("VERSION", "NODE", "PROCESS", "PHASE", "RECORDS", "WRITTEN", "LAG", "ROWS", "STARTS"),
        rows,
        right=(1, 2, 4, 5, 6, 7, 8),
    )
    told = {**program, "running": running, "problems": problems}
    show(as_json, told, [*map(escaped, head), "", listed])
    if program["stopped"]:
        raise typer.Exit(FAILED)


@app.command()
def cancel(
    name: Annotated[str, typer.Argument(metavar="PROGRAM")],
    admin: Admin = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """End the filling of a program's next version. The live one goes on.

    \b
    Example:
      strandline view cancel delays
    """
    where = target(admin=admin, folder=cluster)
    answer = first_answer(where.admin, "POST", "/api/views/cancel", {"program": name}, timeout=20.0)
    show(as_json, answer, f"program {name}: the attempt has ended")


@app.command()
def stop(
    name: Annotated[str, typer.Argument(metavar="PROGRAM")],
    admin: Admin = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Stop a program's live version for good, for example one whose process cannot run.

    Its views stay as they are, and are not kept up to date any more. Apply the program, or another version of
    it: that is filled, and takes the place of the stopped one at one moment.

    \b
    Examples:
      strandline view stop delays
      strandline view apply delays.sql --wait 60
    """
    where = target(admin=admin, folder=cluster)
    answer = first_answer(where.admin, "POST", "/api/views/stop", {"program": name}, timeout=20.0)
    show(as_json, answer, f"program {name}: version {answer['version']} was stopped")


@app.command()
def drop(
    name: Annotated[str, typer.Argument(metavar="PROGRAM")],
    admin: Admin = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Drop a program, its views and their topics.

    \b
    Example:
      strandline view drop delays
    """
    where = target(admin=admin, folder=cluster)
    answer = first_answer(where.admin, "POST", "/api/views/drop", {"program": name}, timeout=20.0)
    show(as_json, answer, f"program {name}: dropped, with {plural(answer['topics'], 'topic')}")


def _check_size(file: Path, content: str, views: int) -> None:
    """CommandFailed for a program that the controller's log does not take."""
    from strandline.statemachine.controller.controller_commands import MAX_PROGRAM_TEXT, MAX_VIEWS

    if not views:
        raise CommandFailed(f"{file} has no view with a topic", "declare one that is not LOCAL", MISUSED)
    cure = "make several programs of it"
    if views > MAX_VIEWS:
        cause = f"{file} has {views} views with topics, and a program has {MAX_VIEWS} at most"
        raise CommandFailed(cause, cure, MISUSED)
    if len(content) > MAX_PROGRAM_TEXT:
        cause = f"{file} has {len(content):,} characters, and a program has {MAX_PROGRAM_TEXT:,} at most"
        raise CommandFailed(cause, cure, MISUSED)


def _find(answer: Any, name: str) -> dict[str, Any]:
    for program in answer["programs"]:
        if program["name"] == name:
            return dict(program)
    raise CommandFailed(f"there is no program {name}", "see `strandline view list`", MISUSED)


def _is_live(addresses: tuple[str, ...], name: str, attempt: int) -> bool:
    """Whether an attempt is the live version, as where the program is equal to that one."""
    programs = first_answer(addresses, "GET", "/api/views")["programs"]
    return any(
        one["name"] == name and one["live"] is not None and one["live"]["attempt"] == attempt
        for one in programs
    )


def _progress(running: dict[str, Any]) -> str:
    """Tell how far the filling of a version is, in one line."""
    status, lag = running["status"], running["lag"]
    taken = status.get("records", 0) + status.get("replayed", 0)
    words = [f"{status.get('phase') or 'starting'}: {taken:,} records taken"]
    rate = status.get("rate", 0)
    words += [] if lag is None else [f"{lag:,} left"]
    words += [f"{rate:,} a second"] if rate else []
    words += [f"about {lag / rate:,.0f} s left"] if lag and rate else []
    words += [f"{status.get('held_bytes', 0):,} bytes held from cleaning"]
    return ", ".join(words)


def _running(addresses: tuple[str, ...], name: str) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Versions of a program that run, and why nodes can run none, by node.

    A node that does not answer runs nothing that is known.
    """
    found: list[dict[str, Any]] = []
    problems: dict[str, str] = {}
    for address in addresses:
        try:
            answer = AdminClient(address).request("GET", "/api/views")
        except Unreachable:
            continue
        if answer.status == 200:
            running = [each for each in answer.body["running"] if each["program"] == name]
            found += [{"node": answer.body["node"], **each} for each in running]
            if answer.body["problem"]:
                problems[str(answer.body["node"])] = answer.body["problem"]
    return found, problems


def _host_first(addresses: tuple[str, ...], name: str) -> list[str]:
    """The nodes, one that runs a version of a program before the others."""
    hosts = []
    for address in addresses:
        with suppress(Unreachable):
            answer = AdminClient(address).request("GET", "/api/views")
            if answer.status == 200 and any(each["program"] == name for each in answer.body["running"]):
                hosts.append(address)
    return [*hosts, *(address for address in addresses if address not in hosts)]


def _wait(addresses: tuple[str, ...], name: str, attempt: int, seconds: float) -> None:
    """Wait for the cutover of an attempt; CommandFailed when it ended otherwise, or is not over in time."""
    end, known_by, seen = time.monotonic() + seconds, time.monotonic() + BEHIND_SECONDS, False
    while True:
        answer = first_answer(addresses, "GET", "/api/views")
        program = next((one for one in answer["programs"] if one["name"] == name), None)
        live, filled = (program["live"], program["next"]) if program else (None, None)
        if live is not None and live["attempt"] == attempt:
            return
        if filled is not None and filled["attempt"] == attempt:
            seen = True
        elif seen or time.monotonic() > known_by:
            ended = _find(answer, name)["ended"]
            raise CommandFailed(f"program {name}: {ended}", "mend that, then apply it again", FAILED)
        if time.monotonic() > end:
            cure = f"the attempt goes on: see `strandline view status {name}`"
            raise CommandFailed(f"program {name} is not live after {seconds:g} s", cure, FAILED)
        time.sleep(WAIT_SECONDS)


def _views(program: dict[str, Any]) -> list[str]:
    version = program["live"] or program["next"]
    return [each["view"] for each in version["views"]] if version else []


def _number(version: dict[str, Any] | None) -> int | None:
    return None if version is None else int(version["number"])
