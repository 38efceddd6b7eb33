"""`strandline acl`: access control entries of Kafka's ports, as `kafka-acls` makes and shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.output import Json, show, table
from strandline.cluster.target import Bootstrap, Cluster, target

if TYPE_CHECKING:
    from strandline.cluster.kafka_client import TopicAdmin

app = typer.Typer(help="Add, list and remove access control entries.")

Doing = Literal[
    "all", "read", "write", "create", "delete", "alter", "describe", "cluster-action", "describe-configs",
    "alter-configs", "idempotent-write",
]  # fmt: skip
Principal = Annotated[str, typer.Argument(metavar="PRINCIPAL", help="Like User:alice, or User:* for all.")]
Operation = Annotated[Doing, typer.Argument(metavar="OPERATION", help="An operation, like read or all.")]
Resource = Annotated[
    str,
    typer.Argument(
        metavar="RESOURCE",
        help="topic:NAME, group:NAME, transactional-id:NAME (* for all names) or cluster.",
    ),
]
Prefix = Annotated[bool, typer.Option("--prefix", help="NAME stands for all names that begin with it.")]
Deny = Annotated[bool, typer.Option("--deny", help="Deny instead of allow. It outweighs all that allow.")]
Host = Annotated[str, typer.Option(metavar="ADDRESS", help="Only clients that come from this IP address.")]
_CLUSTER: Final = "kafka-cluster"
_TYPES: Final = {"topic": "TOPIC", "group": "GROUP", "transactional-id": "TRANSACTIONAL_ID"}


@app.command()
def add(
    principal: Principal,
    operation: Operation,
    resource: Resource,
    prefix: Prefix = False,
    deny: Deny = False,
    host: Host = "*",
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Add an entry.

    \b
    Examples:
      strandline acl add User:alice write topic:orders
      strandline acl add User:bob read topic:ord --prefix
      strandline acl add User:bob read group:billing
    """
    binding = _binding(principal, operation, resource, prefix, deny, host)
    admin = _admin(bootstrap, cluster)
    _changed(admin, "the entry cannot be added", lambda: admin.admin.create_acls([binding]))
    show(as_json, _plain(binding), _told(binding))


@app.command("list")
def list_acls(bootstrap: Bootstrap = None, cluster: Cluster = None, as_json: Json = False) -> None:
    """List all entries.

    \b
    Example:
      strandline acl list --json
    """
    from confluent_kafka.admin import AclBindingFilter  # type: ignore[attr-defined]

    anything: Any = None
    every = AclBindingFilter(
        _number("ResourceType", "ANY"), anything, _number("ResourcePatternType", "ANY"), anything, anything,
        _number("AclOperation", "ANY"), _number("AclPermissionType", "ANY"),
    )  # fmt: skip
    admin = _admin(bootstrap, cluster)
    found = admin.result("the entries cannot be listed", admin.admin.describe_acls(every))
    rows = sorted((_plain(one) for one in found), key=lambda row: (row["resource"], row["principal"]))
    columns = ("RESOURCE", "PRINCIPAL", "PERMISSION", "OPERATION", "HOST")
    lines = [
        (
            row["resource"] + ("*" if row["prefix"] else ""),
            *(str(row[name.lower()]) for name in columns[1:]),
        )
        for row in rows
    ]
    # librdkafka gives an empty list for a refusal too.
    empty = "no entries, or authorization.enabled is not set, or this user may not describe the cluster"
    show(as_json, {"acls": rows}, table(columns, lines) if rows else empty)


@app.command()
def remove(
    principal: Principal,
    operation: Operation,
    resource: Resource,
    prefix: Prefix = False,
    deny: Deny = False,
    host: Host = "*",
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Remove an entry, given as it was added.

    \b
    Example:
      strandline acl remove User:alice write topic:orders
    """
    from confluent_kafka.admin import AclBindingFilter  # type: ignore[attr-defined]

    binding = _binding(principal, operation, resource, prefix, deny, host)
    wanted = AclBindingFilter(
        binding.restype, binding.name, binding.resource_pattern_type, binding.principal, binding.host,
        binding.operation, binding.permission_type,
    )  # fmt: skip
    admin = _admin(bootstrap, cluster)
    gone = _changed(admin, "the entry cannot be removed", lambda: admin.admin.delete_acls([wanted]))
    if not gone:
        raise CommandFailed(f"there is no such entry: {_told(binding)}", "see `strandline acl list`")
    show(as_json, _plain(binding), f"removed: {_told(binding)}")


def _admin(bootstrap: str | None, cluster: Any) -> TopicAdmin:
    from strandline.cluster.kafka_client import TopicAdmin

    return TopicAdmin(target(bootstrap=bootstrap, folder=cluster))


def _changed(admin: TopicAdmin, what: str, request: Any) -> Any:
    from strandline.cluster.kafka_client import refused

    (future,) = refused(admin.where, what, request).values()
    return admin.result(what, future)


def _binding(principal: str, operation: str, resource: str, prefix: bool, deny: bool, host: str) -> Any:
    from confluent_kafka.admin import AclBinding  # type: ignore[attr-defined]

    kind, colon, name = resource.partition(":")
    if resource == "cluster" and not prefix:
        kind_name, name = "BROKER", _CLUSTER  # librdkafka's word for the cluster
    elif kind in _TYPES and colon and name:
        kind_name = _TYPES[kind]
    else:
        raise CommandFailed(
            f"{resource!r} is not a resource{' that has a prefix' if resource == 'cluster' else ''}",
            "write topic:NAME, group:NAME, transactional-id:NAME or cluster",
            MISUSED,
        )
    if not principal.startswith("User:") or principal == "User:":
        raise CommandFailed(f"{principal!r} is not a principal", "write it like User:alice", MISUSED)
    return AclBinding(
        _number("ResourceType", kind_name),
        name,
        _number("ResourcePatternType", "PREFIXED" if prefix else "LITERAL"),
        principal,
        host,
        _number("AclOperation", operation.upper().replace("-", "_")),
        _number("AclPermissionType", "DENY" if deny else "ALLOW"),
    )


def _number(kind: str, name: str) -> Any:
    from confluent_kafka import admin

    return getattr(admin, kind)[name]


def _plain(binding: Any) -> dict[str, Any]:
    kind = binding.restype.name.lower().replace("_", "-")
    return {
        "resource": "cluster" if kind == "broker" else f"{kind}:{binding.name}",
        "prefix": binding.resource_pattern_type.name == "PREFIXED",
        "principal": binding.principal,
        "permission": binding.permission_type.name.lower(),
        "operation": binding.operation.name.lower().replace("_", "-"),
        "host": binding.host,
    }


def _told(binding: Any) -> str:
    plain = _plain(binding)
    named = f"{plain['resource']}{' and longer names' if plain['prefix'] else ''}"
    may = "may" if plain["permission"] == "allow" else "may not"
    where = "" if plain["host"] == "*" else f" from {plain['host']}"
    return f"{plain['principal']} {may} {plain['operation']} {named}{where}"
