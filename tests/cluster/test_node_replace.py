"""What `strandline node replace` says while it waits."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from strandline.cluster.admin_client import AdminClient, Answer, Unreachable
from strandline.cluster.commands.node import _left

FOLDER = "00000000000000ab"


@pytest.mark.parametrize(
    ("replacement", "fenced", "folder", "text"),
    [
        (
            (2, 1, ["a", "b"]),
            True,
            FOLDER,
            "2 groups have still to leave the lost folder out, 1 to take the new in; without a majority of"
            " live replicas, so that they cannot: a, b",
        ),
        ((2, 1), True, FOLDER, "2 groups have still to leave the lost folder out, 1 to take the new in"),
        (
            (0, 3),
            True,
            FOLDER,
            "0 groups have still to leave the lost folder out, 3 to take the new in;"
            " node 3 is not there yet: does it run?",
        ),
        ((0, 3), False, FOLDER, "0 groups have still to leave the lost folder out, 3 to take the new in"),
        (None, True, FOLDER, "it is not registered yet"),
        (None, False, FOLDER, None),
        (None, False, "00000000000000cd", "no node answers that knows of it"),
    ],
)
def test_what_is_left_is_told_and_whether_the_node_is_there(
    *,
    replacement: tuple[int, int] | tuple[int, int, list[str]] | None,
    fenced: bool,
    folder: str,
    text: str | None,
) -> None:
    names = "leaving", "joining", "stuck_topics"
    present: dict[str, object] | None = None
    if replacement is not None:
        present = {"stuck_topics": [], **dict(zip(names, replacement, strict=False))}
    body = {"replacement": present, "nodes": [{"node": 3, "folder": folder, "fenced": fenced}]}

    def request(client: AdminClient, *_: Any) -> Answer:
        if client.address == "gone:1":
            raise Unreachable("connection refused")
        return Answer(200, body)

    with patch.object(AdminClient, "request", request):
        assert _left(("gone:1", "there:1"), 3, FOLDER) == text
