"""The HTTP interface of a node, as the command line needs it: question, answer, or an error that helps.

One request at a time on a fresh connection is all that is wanted here, so the standard library is enough.
"""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from strandline.cluster.client_settings import CURRENT
from strandline.cluster.failure import FAILED, MISUSED, CommandFailed, one_line
from strandline.cluster.token_file import has_token, token

HTTPS: Final = "https://"

DEGRADED: Final = "degraded: "
"""Begins the problem of a node that does its part, while something around it is wrong."""
_ANSWER_LIMIT: Final = 64 * 1024 * 1024
_JUDGED: Final = (400, 409)
"""Statuses of a request that makes no sense, or not in the cluster as it is."""


class Unreachable(Exception):
    """No HTTP answer came from that address."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One response; `body` is its decoded JSON, or its text if it was none."""

    status: int
    body: Any

    @property
    def reasons(self) -> str:
        """The reasons of an answer that is not good, in one line."""
        if isinstance(self.body, Mapping):
            for name in ("problems", "error"):
                told = self.body.get(name)
                if isinstance(told, list) and told:
                    return one_line("; ".join(map(_told, told)))
                if told:
                    return one_line(str(told))
        return one_line(str(self.body))[:300] or f"HTTP status {self.status}"


@dataclass(frozen=True, slots=True)
class Health:
    """Result of a node's /health; `problem` is one line, None if the node is healthy."""

    problem: str | None
    does_its_part: bool
    """It is ready for clients: healthy, or degraded by what others lack."""
    only_storage: bool = False
    """Nothing is wrong but the object store, which no waiting for the node mends."""
    details: Mapping[str, str] = field(default_factory=dict)
    """Of each problem, by its reason, one line."""


class AdminClient:
    """Talks to one node; `address` is host:port, with https:// before it through TLS.

    Through TLS it logs in as the command's client settings say, and trusts what they trust.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._url = address if address.startswith(HTTPS) else f"http://{address}"
        self._headers = {"Accept": "application/json", "Content-Type": "application/json"}
        # Never by way of a proxy: these are addresses of this machine or of this network. A node redirects
        # no request, and another server must not be passed the login by one that does.
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({}), _NoRedirects()]
        if address.startswith(HTTPS):
            settings = CURRENT.get()
            handlers.append(urllib.request.HTTPSHandler(context=_trusting(settings.get("ssl.ca.location"))))
            if has_token(settings):
                self._headers["Authorization"] = f"Bearer {token(settings)}"
            elif "sasl.username" in settings:
                login = f"{settings['sasl.username']}:{settings.get('sasl.password', '')}".encode()
                self._headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
        self._opener = urllib.request.build_opener(*handlers)

    def request(self, method: str, path: str, body: Any = None, *, timeout: float = 10.0) -> Answer:
        """One request; an answer with whatever status, Unreachable without one. `timeout` in seconds."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self._url}{path}", data=data, method=method, headers=self._headers
        )
        try:
            with self._opener.open(request, timeout=timeout) as response:
                data = response.read(_ANSWER_LIMIT)
                if response.length:
                    raise Unreachable("the answer breaks off")
                return Answer(response.status, _decoded(data))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, _decoded(error.read(_ANSWER_LIMIT)))
        except Unreachable:
            raise
        except OSError as error:  # URLError is one, and a reset connection or a timeout as well
            reason = getattr(error, "reason", error)
            if isinstance(reason, ssl.SSLCertVerificationError):
                told = f"its certificate is not accepted: {reason.verify_message}: name the file of its "
                raise Unreachable(f"{told}authority as ssl.ca.location in --config FILE") from error
            raise Unreachable(one_line(str(reason))) from error
        except Exception as error:  # http.client's, which share no base that would be an OSError
            raise Unreachable(one_line(repr(error))) from error

    def health(self, *, timeout: float = 2.0) -> str | None:
        """None when the node is healthy, else in one line what it, or the cluster around it, lacks."""
        found = self.state(timeout=timeout)
        return found.problem

    def state(self, *, timeout: float = 2.0) -> Health:
        """The state that the node reports."""
        try:
            answer = self.request("GET", "/health", timeout=timeout)
        except Unreachable as error:
            return Health(f"no answer at {self._url}/health ({error})", does_its_part=False)
        told = answer.body.get("problems") if isinstance(answer.body, Mapping) else None
        details = {str(each.get("reason")): _told(each) for each in told or () if isinstance(each, Mapping)}
        reasons = set(details)
        if answer.status == 200:
            # Degraded: the node does its part, and something around it is wrong.
            return Health(f"{DEGRADED}{answer.reasons}" if reasons else None, does_its_part=True)
        only_storage = reasons == {"storage_failing"}
        return Health(answer.reasons, does_its_part=False, only_storage=only_storage, details=details)


def first_answer(
    addresses: Sequence[str],
    method: str,
    path: str,
    body: Any = None,
    *,
    timeout: float = 10.0,
    refused: int = FAILED,
) -> Any:
    """The body of the first good answer of any of these nodes; CommandFailed when there is none.

    A node that answers with an error has judged the request, or is not able to serve it now; only in the
    latter case (status 503) the next one is asked. `refused` is the status to end with where it judged it.
    """
    problems = []
    status = FAILED
    cure = "check that the nodes run (`strandline cluster status`), or name one's HTTP port with --admin"
    for address in addresses:
        try:
            answer = AdminClient(address).request(method, path, body, timeout=timeout)
        except Unreachable as error:
            problems.append(f"{address}: {error}")
            continue
        if answer.status < 300:
            if isinstance(answer.body, Mapping):
                return answer.body
            problems.append(f"{address}: that is not a node's HTTP port")
            continue
        problems.append(f"{address}: {answer.reasons}")
        if answer.status != 503:
            status = refused if answer.status in _JUDGED else FAILED
            cure = "correct what was asked for" if answer.status < 500 else "see that node's log"
            if answer.status == 401:
                cure = "write sasl.username and sasl.password to the file of `strandline --config FILE`"
            break
    raise CommandFailed(f"{method} {path} failed ({'; '.join(problems)})", cure, status)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Leaves a redirect what it is: an answer that is not good."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""
        return


def _trusting(authority: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=authority)
    except OSError as error:
        raise CommandFailed(
            f"{authority} cannot be read as certificates ({error.strerror or error})",
            "correct ssl.ca.location",
            MISUSED,
        ) from None


def _told(problem: Any) -> str:
    """One of /health's problems: its detail where it has one, since that names the thing and the cure."""
    if not isinstance(problem, Mapping):
        return str(problem)
    return str(problem.get("detail") or problem.get("meaning") or dict(problem))


def _decoded(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")
