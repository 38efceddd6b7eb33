"""`strandline quota`: client quotas, as `kafka-configs` sets and shows them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.output import Json, show, table
from strandline.cluster.target import Bootstrap, Cluster, target
from strandline.statemachine.controller.client_quota import CLIENT_ID, IP, USER, shortest

if TYPE_CHECKING:
    from strandline.cluster.quota_client import Entity, QuotaClient

app = typer.Typer(help="List, set and remove quotas of users, client ids and IP addresses.")

User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="Quotas of this user.")]
DefaultUser = Annotated[bool, typer.Option("--default-user", help="Of each user that has none of its own.")]
Client = Annotated[str | None, typer.Option("--client-id", metavar="ID", help="Quotas of this client id.")]
DefaultClient = Annotated[
    bool, typer.Option("--default-client-id", help="Of each client id that has none of its own.")
]
Ip = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="Quotas of this IP address.")]
DefaultIp = Annotated[bool, typer.Option("--default-ip", help="Of each address that has none of its own.")]
KEYS: Final = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)


@app.command("list")
def list_quotas(bootstrap: Bootstrap = None, cluster: Cluster = None, as_json: Json = False) -> None:
    """List all quotas.

    \b
    Example:
      strandline quota list --json
    """
    with _client(bootstrap, cluster) as client:
        found = client.all()
    rows = [
        (_told(quota.entity), key, _shown(value)) for quota in found for key, value in quota.values.items()
    ]
    plain = {"quotas": [{"entity": dict(quota.entity), "values": dict(quota.values)} for quota in found]}
    show(as_json, plain, table(("ENTITY", "KEY", "VALUE"), rows, right=(2,)) if rows else "no quotas")


@app.command("set")
def set_quotas(
    values: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help=f"Keys: {', '.join(KEYS)}.")],
    user: User = None,
    default_user: DefaultUser = False,
    client_id: Client = None,
    default_client_id: DefaultClient = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Set quotas of a user, of a client id, of both together, or of an IP address; its other quotas stay.

    \b
    Examples:
      strandline quota set --user alice producer_byte_rate=1048576
      strandline quota set --default-user --client-id loader request_percentage=50
      strandline quota set --default-ip connection_creation_rate=20
    """
    entity = _entity((user, default_user), (client_id, default_client_id), (ip, default_ip))
    wanted = dict(map(_value, values))
    with _client(bootstrap, cluster) as client:
        client.alter(f"quotas of {_told(entity)} cannot be set", entity, wanted)
    told = ", ".join(f"{key}={_shown(value)}" for key, value in wanted.items())
    show(as_json, {"entity": dict(entity), "values": wanted}, f"{_told(entity)}: {told}")


@app.command()
def remove(
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY...]", help="Keys to remove. Default: all.")
    ] = None,
    user: User = None,
    default_user: DefaultUser = False,
    client_id: Client = None,
    default_client_id: DefaultClient = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Remove quotas, named as they were set.

    \b
    Example:
      strandline quota remove --user alice
    """
    entity = _entity((user, default_user), (client_id, default_client_id), (ip, default_ip))
    for key in keys or ():
        _check_key(key)
    with _client(bootstrap, cluster) as client:
        there = next((quota.values for quota in client.all() if dict(quota.entity) == dict(entity)), {})
        gone = [key for key in there if not keys or key in keys]
        if not gone or set(keys or ()) - set(gone):
            raise CommandFailed(f"there is no such quota of {_told(entity)}", "see `strandline quota list`")
        client.alter(f"quotas of {_told(entity)} cannot be removed", entity, dict.fromkeys(gone))
    show(as_json, {"entity": dict(entity), "removed": gone}, f"removed of {_told(entity)}: {', '.join(gone)}")


@contextlib.contextmanager
def _client(bootstrap: str | None, cluster: Any) -> Iterator[QuotaClient]:
    from strandline.cluster.quota_client import QuotaClient

    client = QuotaClient(target(bootstrap=bootstrap, folder=cluster).bootstrap)
    try:
        yield client
    finally:
        client.close()


def _entity(*named: tuple[str | None, bool]) -> Entity:
    parts: list[tuple[str, str | None]] = []
    for kind, (name, default) in zip((USER, CLIENT_ID, IP), named, strict=True):
        if name is not None and default:
            cause = f"--{kind} and --default-{kind} exclude each other"
            raise CommandFailed(cause, "leave one of them out", MISUSED)
        if name is not None or default:
            # As the cluster spells addresses: removing compares with what it lists.
            parts.append((kind, (name and shortest(name)) or name if kind == IP else name))
    if not parts:
        cure = "write --user NAME, --client-id ID, --ip ADDRESS, or --default-user and the like"
        raise CommandFailed("no user, client id or IP address is named", cure, MISUSED)
    return tuple(parts)


def _value(text: str) -> tuple[str, float]:
    key, equals, number = text.partition("=")
    _check_key(key)
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not equals or not 0 < value < math.inf:
        raise CommandFailed(f"{text!r} has no number above 0", f"write for example {key}=1000", MISUSED)
    return key, value


def _check_key(key: str) -> None:
    if key not in KEYS:
        raise CommandFailed(f"{key!r} is no quota", f"write one of {', '.join(KEYS)}", MISUSED)


def _told(entity: Entity) -> str:
    return ", ".join(f"{kind} {'(default)' if name is None else name}" for kind, name in entity)


def _shown(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)
