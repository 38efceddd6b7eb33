"""Environment variables that are configuration, told apart from others with the same prefix.

`STRANDLINE_<SECTION>_<KEY>` of a key that exists is. A slip of the pen must not go unnoticed, so a name that
is nearly such a key is an error. But images and unit files set names like STRANDLINE_HOME for themselves, and
for a Service called `strandline` Kubernetes sets STRANDLINE_PORT=tcp://10.0.0.1:9092 and more in every pod
(https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables): neither may keep a
node from starting.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Final

from strandline.node.config.listeners import key_of_variable

PREFIX: Final = "STRANDLINE_"
_OPTIONS: Final = "storage_options_"
_NEAR: Final = 0.8
"""Names this much alike (difflib) are one name and a slip of the pen."""
_OF_A_SERVICE: Final = re.compile(
    r"(.+_)?(SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_LINK: Final = re.compile(r"(tcp|udp|sctp)://.*")


def is_of_a_service(variable: str, value: str) -> bool:
    """Whether Kubernetes (or a Docker link) sets a variable like this one for a service of that name."""
    name = variable.removeprefix(PREFIX)
    return bool(_OF_A_SERVICE.fullmatch(name)) or (name.endswith("PORT") and bool(_LINK.fullmatch(value)))


def key_of(variable: str, keys: Iterable[str]) -> str | None:
    """The key that a variable gives, of those there are; None when it is none of them."""
    name = variable.removeprefix(PREFIX).lower()
    if name.startswith(_OPTIONS) and name != _OPTIONS:
        return f"storage.options.{name.removeprefix(_OPTIONS)}"
    if (of_listener := key_of_variable(name)) is not None:
        return of_listener
    return next((key for key in keys if key.replace(".", "_") == name), None)


def near(variable: str, keys: Iterable[str]) -> str | None:
    """The key that a variable was probably meant to give."""
    name = variable.removeprefix(PREFIX).lower()
    found = difflib.get_close_matches(name, {key.replace(".", "_"): key for key in keys}, 1, _NEAR)
    return found[0] if found else None
