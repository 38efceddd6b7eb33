"""`strandline user`: users that log in at Kafka's ports. The first is made through a listener without logins.

The password is asked for, or read from a pipe: on a command line every process of the machine could see it.
"""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.output import Json, show, table
from strandline.cluster.target import Bootstrap, Cluster, target

if TYPE_CHECKING:
    from strandline.cluster.kafka_client import TopicAdmin

app = typer.Typer(help="Add, list and remove users that log in by SCRAM.")

Mechanism = Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]
_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_SALT_LENGTH: Final = 26
"""As Kafka's own tools make salts: so one tells nothing about its user, nor from that of an unknown one."""
ITERATIONS: Final = 4096
MAX_PASSWORD: Final = 1024


@app.command()
def add(
    name: Name,
    mechanism: Annotated[
        Mechanism, typer.Option(help="Mechanism that the password is for.")
    ] = "SCRAM-SHA-256",
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Add a user, or give one another password, which is asked for or read from a pipe.

    \b
    Examples:
      strandline user add alice
      openssl rand -hex 16 | tee alice.password | strandline user add alice
    """
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        ScramCredentialInfo,
        UserScramCredentialUpsertion,
    )

    admin = _admin(bootstrap, cluster)
    password = _password(name)
    salt = "".join(secrets.choice(_ALPHABET) for _ in range(_SALT_LENGTH)).encode()
    info = ScramCredentialInfo(_numbered(mechanism), ITERATIONS)
    _alter(
        admin,
        f"user {name} cannot be added",
        name,
        lambda: UserScramCredentialUpsertion(name, info, password.encode(), salt),
    )
    show(as_json, {"user": name, "mechanism": mechanism}, f"{name} may log in by {mechanism}")


@app.command("list")
def list_users(bootstrap: Bootstrap = None, cluster: Cluster = None, as_json: Json = False) -> None:
    """List users and the mechanisms that they may log in by.

    \b
    Example:
      strandline user list --json
    """
    found = _described(_admin(bootstrap, cluster))
    plain = {"users": [{"user": user, "mechanisms": found[user]} for user in sorted(found)]}
    rows = [(user, ", ".join(found[user])) for user in sorted(found)]
    show(as_json, plain, table(("USER", "MECHANISMS"), rows) if rows else "no users")


@app.command()
def remove(name: Name, bootstrap: Bootstrap = None, cluster: Cluster = None, as_json: Json = False) -> None:
    """Remove a user with all its credentials; clients that are connected stay so.

    \b
    Example:
      strandline user remove alice
    """
    from confluent_kafka.admin import UserScramCredentialDeletion  # type: ignore[attr-defined]

    admin = _admin(bootstrap, cluster)
    mechanisms = _described(admin).get(name)
    if mechanisms is None:
        raise CommandFailed(f"there is no user {name}", "see `strandline user list`")
    for mechanism in mechanisms:
        deletion = UserScramCredentialDeletion(name, _numbered(mechanism))
        _alter(admin, f"user {name} cannot be removed", name, lambda deletion=deletion: deletion)
    show(as_json, {"user": name, "mechanisms": mechanisms}, f"{name} may no longer log in")


def _admin(bootstrap: str | None, cluster: Any) -> TopicAdmin:
    from strandline.cluster.kafka_client import TopicAdmin

    return TopicAdmin(target(bootstrap=bootstrap, folder=cluster))


def _alter(admin: TopicAdmin, what: str, name: str, change: Any) -> None:
    from strandline.cluster.kafka_client import REQUEST_SECONDS, refused

    def request() -> Any:
        return admin.admin.alter_user_scram_credentials([change()], request_timeout=REQUEST_SECONDS)

    admin.result(what, refused(admin.where, what, request)[name])


def _described(admin: TopicAdmin) -> dict[str, list[str]]:
    """Each user's mechanisms."""
    from strandline.cluster.kafka_client import REQUEST_SECONDS

    asked: Any = admin.admin.describe_user_scram_credentials(request_timeout=REQUEST_SECONDS)
    found = admin.result("the users cannot be listed", asked)
    return {
        user: sorted(info.mechanism.name.replace("_", "-") for info in told.scram_credential_infos)
        for user, told in found.items()
    }


def _numbered(mechanism: str) -> Any:
    from confluent_kafka.admin import ScramMechanism  # type: ignore[attr-defined]

    return ScramMechanism[mechanism.replace("-", "_")]


def _password(name: str) -> str:
    """The first line of a pipe, or two equal answers at a terminal."""
    if sys.stdin.isatty():
        password: str = typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True)
    else:
        password = sys.stdin.readline(MAX_PASSWORD + 2).rstrip("\r\n")
    if not 1 <= len(password) <= MAX_PASSWORD:
        raise CommandFailed(
            f"the password has {len(password)} characters",
            f"write 1 to {MAX_PASSWORD} characters as the first line of standard input",
            MISUSED,
        )
    return password
