"""Common parts of requests for lists: checked parameters, and answers in pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from strandline.node.admin.http import Json, to_json
from strandline.node.runtime.slices import Slices
from strandline.statemachine.controller.controller import Controller

Key = TypeVar("Key", int, str)

PAGE: Final = 100
MAX_PAGE: Final = 1000
_MAX_GROUP: Final = 2**63 - 1


async def page(
    name: str,
    keys: list[Key],
    limit: int,
    view: Callable[[Key], Mapping[str, Any]],
    coordinators: Mapping[str, Any] | None = None,
) -> Response:
    """The first `limit` of the keys, each as it is seen, and the key to go on after (null: no more).

    `coordinators`, as `coordinators_led` gives them, are a second field.
    """
    slices, rows = Slices(), list[bytes]()
    for key in islice(keys, limit):
        rows.append(to_json(view(key)))
        await slices.breathe()
    following = to_json(keys[limit - 1] if len(keys) > limit else None)
    told = b"" if coordinators is None else b',"coordinators":' + to_json(coordinators)
    return Json(b'{"%s":[%s],"next":%s%s}' % (name.encode(), b",".join(rows), following, told))


def coordinators_led(machine: Controller, topic: str, led: Iterable[int]) -> dict[str, Any]:
    """The coordinators that a list covers: a caller that asks every node sees which are missing."""
    found = machine.topic(topic)
    return {"led": sorted(led), "coordinators_total": 0 if found is None else len(found.partitions)}


def only(request: Request, *known: str) -> None:
    """HTTPException for a parameter that is none of these."""
    for name in request.query_params:
        if name not in known:
            takes = ", ".join(known) if known else "none"
            raise HTTPException(400, f"there is no parameter {name[:100]!r} here; there is: {takes}")


def after_group(request: Request) -> int:
    """The group after which a page begins; -1: at the first."""
    return number(request, "after", -1, -1, _MAX_GROUP)


def limit(request: Request) -> int:
    """Requested number of rows of a page."""
    return number(request, "limit", PAGE, 1, MAX_PAGE)


def number(request: Request, name: str, default: int, low: int, high: int) -> int:
    """A parameter that is a number; HTTPException for one that is none, or out of bounds."""
    text = request.query_params.get(name)
    if text is None:
        return default
    # Bounded and ASCII before int() sees it: it takes other digits too, and long texts take long.
    if not (text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high):
        raise HTTPException(400, f"{name} is a number from {max(low, 0)} to {high}, not {text[:100]!r}")
    return int(text)
