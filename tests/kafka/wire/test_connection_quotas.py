"""Numbers and rates of connections: against a clock of the test, and at a server with TLS and without."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import uvloop

from strandline.node.kafka.wire import connection_quotas
from strandline.node.kafka.wire.connection_quotas import ConnectionQuotas, Place, TurnedAway
from strandline.node.kafka.wire.server_config import CloseReason, ServerConfig
from strandline.node.tls.keeper import TlsSettings
from strandline.statemachine.controller.client_quota import CONNECTION_RATE, QuotaEntity
from strandline.statemachine.controller.controller_commands import AlterClientQuotas
from strandline.statemachine.controller.quota_set import QuotaSet
from tests.kafka.wire.certificates import Authority
from tests.kafka.wire.server_harness import (
    Client,
    EchoHandler,
    Served,
    api_versions,
    init,
    serve,
    settle,
)


class Clock:
    """The part of a loop that has to do with time; `pass_` runs what is due, in order."""

    def __init__(self) -> None:
        self.now = 100.0
        self.count = 0
        self.due: list[tuple[float, int, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[..., None], *given: Any) -> Any:
        self.count += 1
        self.due.append((when, self.count, lambda: call(*given)))

    def call_later(self, seconds: float, call: Callable[..., None], *given: Any) -> Any:
        self.call_at(self.now + seconds, call, *given)

    def call_soon(self, call: Callable[..., None], *given: Any) -> Any:
        self.call_at(self.now, call, *given)

    def pass_(self, seconds: float = 0.0) -> None:
        until = self.now + seconds
        while self.due and min(self.due)[0] <= until:
            first = min(self.due)
            self.due.remove(first)
            self.now = max(self.now, first[0])
            first[2]()
        self.now = until


class Door:
    """ConnectionQuotas of one clock, and who came in when."""

    def __init__(self, quotas: dict[str, float] | None = None, **config: Any) -> None:
        self.clock = Clock()
        rates = {ip: {CONNECTION_RATE: rate} for ip, rate in (quotas or {}).items()}
        known = QuotaSet((QuotaEntity(None, None, ip), values) for ip, values in rates.items())
        loop: Any = self.clock
        self.known = known
        self.quotas = ConnectionQuotas(ServerConfig(**config), lambda: known, loop=loop)
        self.came: list[tuple[str, float]] = []

    def enter(self, name: str = "", client: str = "10.0.0.1", listener: str = "a") -> Place | TurnedAway:
        def came() -> None:
            self.came.append((name, self.clock.now))

        entered = self.quotas.enter(listener, client, came)
        if isinstance(entered, Place) and entered.inside:
            came()
        return entered

    def place(self, name: str = "", client: str = "10.0.0.1", listener: str = "a") -> Place:
        entered = self.enter(name, client, listener)
        assert isinstance(entered, Place)
        return entered

    def away(self, client: str = "10.0.0.1") -> TurnedAway:
        entered = self.enter("", client)
        assert isinstance(entered, TurnedAway)
        return entered

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.came]


def door(quotas: dict[str, float] | None = None, **config: Any) -> Door:
    made = Door(quotas, **config)
    made.quotas.serve("a", 0, 0)
    made.quotas.serve("b", 0, 0)
    return made


def test_those_above_the_number_come_in_by_their_turn() -> None:
    made = door(max_connections=2)
    first, _, third, _ = [made.place(name) for name in "1234"]
    assert (made.names, made.quotas.waiting) == (["1", "2"], 2)
    third.leave()
    first.leave()
    first.leave()
    made.clock.pass_()
    assert (made.names, made.quotas.waiting) == (["1", "2", "4"], 0), "one that went gave its turn away"
    made.place("5")
    assert made.names == ["1", "2", "4"], "one place was given back, and once"


def test_a_listener_has_a_number_of_its_own_and_the_other_goes_on() -> None:
    made = Door(max_connections=3)
    made.quotas.serve("a", 1, 0)
    made.quotas.serve("b", 0, 0)
    one = made.place("a1", listener="a")
    made.place("a2", listener="a")
    other = made.place("b1", listener="b")
    made.place("b2", listener="b")
    made.place("b3", listener="b")
    assert made.names == ["a1", "b1", "b2"]
    assert [made.quotas.most(name) for name in "ab"] == [1, 3]
    one.leave()
    made.clock.pass_()
    assert made.names == ["a1", "b1", "b2", "a2"], "both wait, and the turn goes round"
    other.leave()
    made.clock.pass_()
    assert made.names[4:] == ["b3"], "where the first listener has none that waits"


def test_the_log_says_that_connections_wait_and_for_which_bound(caplog: pytest.LogCaptureFixture) -> None:
    made = Door(max_connections=2)
    made.quotas.serve("a", 1, 0)
    made.quotas.serve("b", 0, 0)
    for listener in "aaabbb":
        made.place(listener=listener)
    waits = "new connections wait, as"
    assert caplog.messages == [
        f"listener a: {waits} 1 are open: end some, or raise max_connections of this listener",
        f"listener b: {waits} 2 are open: end some, or raise quotas.max_connections",
    ]
    made.clock.pass_(connection_quotas.TELL_SECONDS)
    made.place(listener="b")
    made.place(listener="b")
    assert len(caplog.messages) == 3, "once a minute"


def test_a_rate_is_kept_and_those_above_it_wait() -> None:
    made = door(max_connection_creation_rate=2, windows=2)
    for number in range(20):
        made.place(str(number))
    made.clock.pass_(30.0)
    assert made.names == [str(number) for number in range(20)]
    times = [time - 100.0 for _, time in made.came]
    assert times[1] == 0.0 < times[2]
    assert all(0.0 <= later - earlier <= 1.0 + 1e-6 for earlier, later in pairwise(times))
    assert times[-1] - times[1] >= 18 / 2 - 2.0, (
        "two a second, but for what a window of two seconds lets through"
    )


def test_a_listeners_rate_does_not_hold_up_the_other() -> None:
    made = Door(windows=2)
    made.quotas.serve("a", 0, 1)
    made.quotas.serve("b", 0, 0)
    for number in range(9):
        made.place(f"a{number}", listener="a")
    made.place("b", listener="b")
    assert made.names[-1] == "b"
    assert len(made.names) < 9


def test_an_address_above_its_rate_is_turned_away_after_a_while_and_uses_up_nothing() -> None:
    made = door({"10.0.0.1": 2.0}, windows=2, max_connections=50)
    for _ in range(2):
        made.place()
    away = [made.away() for _ in range(40)]
    assert {one.reason for one in away} == {CloseReason.RATE}
    assert all(0 < one.seconds <= 1.0 for one in away)
    assert "more than 2 connections a second from 10.0.0.1" in away[0].message
    for number in range(40):
        made.place(str(number), client="10.0.0.2")
    assert len(made.names) == 42, "an address without a quota, and no place is taken"
    made.clock.pass_(1.6)
    assert isinstance(made.enter(), Place), "what was turned away counts nowhere"


def test_an_address_whose_quota_was_lowered_is_closed_after_a_second_and_not_when_it_is_below() -> None:
    made = door({"10.0.0.1": 1000.0})
    for _ in range(100):
        made.place()
    made.known.alter(AlterClientQuotas(None, None, [(CONNECTION_RATE, 1.0)], "10.0.0.1"))
    assert made.away().seconds == 1.0
    made.known.alter(AlterClientQuotas(None, None, [(CONNECTION_RATE, None)], "10.0.0.1"))
    made.place("without a quota")


def test_no_more_than_so_many_are_kept_open_to_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_quotas, "MAX_DELAYED", 3)
    made = door({"": 2.0}, windows=2)
    for _ in range(2):
        made.place()
    assert [made.away().seconds > 0 for _ in range(5)] == [True] * 3 + [False] * 2
    made.clock.pass_(1.0)
    assert made.quotas._delayed == 0


def test_the_quota_of_all_addresses_is_of_each_host_by_itself() -> None:
    made = door({"": 1.0}, windows=2)
    while isinstance(made.enter("", "2001:db8::1"), Place):
        pass
    made.away("2001:db8::ffff")
    made.place("other", client="2001:db8:0:1::1")


def test_an_address_with_a_quota_of_its_own_has_it_by_itself() -> None:
    made = door({"": 1.0, "2001:db8::7": 1.0}, windows=2)
    while isinstance(made.enter("", "2001:db8::1"), Place):
        pass
    made.place("own", client="2001:db8::7")


def test_addresses_are_forgotten_those_first_that_connected_least_lately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_quotas, "MAX_TRACKED", 2)
    made = door({"": 1.0}, windows=2)
    while isinstance(made.enter("", "10.0.0.1"), Place):
        pass
    made.enter("", "10.0.0.2")
    made.away("10.0.0.1")
    made.enter("", "10.0.0.3")
    made.away("10.0.0.1")
    made.enter("", "10.0.0.4")
    made.enter("", "10.0.0.5")
    made.place("forgotten", client="10.0.0.1")


def test_a_host_has_so_many_connections_or_those_of_its_own_setting() -> None:
    made = door(max_connections_per_ip=2, max_connections_per_ip_overrides={"10.0.0.2": 1})
    first = made.place()
    made.place()
    away = made.away()
    assert (away.seconds, away.reason) == (0.0, CloseReason.FULL)
    assert "there are 2 connections of this host already" in away.message
    made.place(client="10.0.0.2")
    made.away("10.0.0.2")
    first.leave()
    made.place()


def test_what_is_above_a_hosts_number_counts_in_its_rate() -> None:
    made = door({"": 2.0}, windows=2, max_connections_per_ip=1)
    made.place()
    assert [made.away().reason for _ in range(3)] == [CloseReason.FULL, CloseReason.RATE, CloseReason.RATE]


def test_none_comes_in_any_more_where_a_node_stops() -> None:
    made = door(max_connections=1)
    first = made.place("1")
    made.place("2")
    made.quotas.close()
    first.leave()
    made.clock.pass_(5.0)
    assert made.names == ["1"]


def test_the_queue_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_quotas, "MAX_WAITING", 2)
    made = door(max_connections=1)
    for _ in range(3):
        made.place()
    assert made.away().reason is CloseReason.FULL
    made.place(listener="b")


def test_one_host_leaves_room_to_others_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_quotas, "MAX_WAITING_OF_HOST", 2)
    made = door(max_connections=1)
    first = made.place("1")
    waiting = [made.place("2"), made.place("3")]
    away = made.away()
    assert (away.reason, away.seconds) == (CloseReason.FULL, 0.0)
    assert "2 other connections of this host wait" in away.message
    made.place("other", client="10.0.0.2")
    waiting[1].leave()
    made.place("4")
    made.away()
    first.leave()
    made.clock.pass_()
    assert made.names == ["1", "2"]
    made.place("5")
    made.away()


# At a server.


@contextmanager
def secure(folder: Path) -> Iterator[tuple[TlsSettings, ssl.SSLContext]]:
    authority = Authority(folder)
    context = ssl.create_default_context(cafile=authority.path)
    yield TlsSettings(*authority.issue("server")), context


Loops = Callable[[], asyncio.AbstractEventLoop]
both = pytest.mark.parametrize(
    "loops", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
ways = pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])


async def begun(served: Served) -> Client:
    """A connection of TCP, that has not said a word."""
    client = Client(*await asyncio.open_connection("127.0.0.1", served.server.port))
    served.clients.append(client)
    await settle()
    return client


async def speaks(client: Client, context: ssl.SSLContext | None) -> bool:
    if context is not None:
        await asyncio.wait_for(client.writer.start_tls(context, server_hostname="localhost"), 5)
    client.writer.write(init(7))
    return await client.answer() == 7


@both
@ways
def test_one_more_is_not_read_and_shakes_no_hands_until_its_turn(
    loops: Loops, encrypted: bool, tmp_path: Path
) -> None:
    async def body(tls: TlsSettings | None, context: ssl.SSLContext | None) -> None:
        async with serve(handler := EchoHandler(), tls, max_connections=1) as served:
            first, second = await begun(served), await begun(served)
            held = [one for one in served.server._connections if one._held]
            assert [one._reading for one in held] == ([] if encrypted else [False])
            if not encrypted:
                # What is there before the server has accepted uvloop reads all the same.
                with socket.create_connection(("127.0.0.1", served.server.port)) as hasty:
                    hasty.sendall(init(1))
                    await settle(50)
                    assert handler.asked == 0
            assert await speaks(first, context)
            waiting = asyncio.ensure_future(speaks(second, context))
            await settle(50)
            assert not waiting.done()
            assert served.server.quotas.waiting == (1 if encrypted else 2)
            assert served.server.handshakes["done"] == (1 if encrypted else 0)
            first.writer.transport.abort()
            assert await waiting
            assert not served.problems

    with secure(tmp_path) as (tls, context), asyncio.Runner(loop_factory=loops) as runner:
        runner.run(body(tls, context) if encrypted else body(None, None))


@both
@ways
def test_an_address_above_its_rate_gets_no_word_and_is_closed_after_a_while(
    loops: Loops, encrypted: bool, tmp_path: Path
) -> None:
    async def body(tls: TlsSettings | None, context: ssl.SSLContext | None) -> None:
        quotas = QuotaSet([(QuotaEntity(None, None, "127.0.0.1"), {CONNECTION_RATE: 2.0})])
        more: dict[str, Any] = {"max_handshakes": 1, "handshake_seconds": 1.0, "windows": 2}
        async with serve(EchoHandler(), tls, quotas=quotas, window_seconds=0.5, **more) as served:
            assert await speaks(await begun(served), context)
            while not (served.problems or served.server.quotas._delayed):
                last = await begun(served)
                if not encrypted:
                    last.writer.write(init(1))
                await settle()
                assert len(served.clients) < 10
            if encrypted:
                assert served.server._gates[0]._delayed or not served.server.quotas._delayed, "not at once"
            assert await last.ended()
            assert set(served.reasons()) == {"connection_rate"}
            await asyncio.sleep(1.1)
            assert await speaks(await begun(served), context)

    with secure(tmp_path) as (tls, context), asyncio.Runner(loop_factory=loops) as runner:
        runner.run(body(tls, context) if encrypted else body(None, None))


@both
def test_a_handshake_that_fails_or_never_comes_gives_its_place_back(loops: Loops, tmp_path: Path) -> None:
    async def body(tls: TlsSettings, context: ssl.SSLContext) -> None:
        async with serve(EchoHandler(), tls, max_connections=1, handshake_seconds=0.3) as served:
            bad, silent, good = [await begun(served) for _ in range(3)]
            bad.writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert await speaks(good, context), "after the one that failed and the one that said nothing"
            assert served.server.handshakes == {"done": 1, "failed": 2}
            silent.writer.close()

    with secure(tmp_path) as (tls, context), asyncio.Runner(loop_factory=loops) as runner:
        runner.run(body(tls, context))


@both
def test_handshakes_of_one_host_leave_room_to_others(loops: Loops, tmp_path: Path) -> None:
    async def body(tls: TlsSettings, context: ssl.SSLContext) -> None:
        async with serve(EchoHandler(), tls, max_handshakes=3, max_handshakes_of_host=2) as served:
            silent = [await begun(served) for _ in range(2)]
            assert await (await begun(served)).ended()
            assert [(str(one.reason), one.message.partition(": ")[2]) for one in served.problems] == [
                ("too_many_connections", "2 other TLS handshakes of this host are under way")
            ]
            assert served.server.quotas._open == 2, "what was closed has no place"
            way: dict[str, Any] = {
                "local_addr": ("127.0.0.2", 0),
                "ssl": context,
                "server_hostname": "localhost",
            }
            other = Client(*await asyncio.open_connection("127.0.0.1", served.server.port, **way))
            served.clients.append(other)
            assert await speaks(other, None)
            silent[0].writer.transport.abort()
            await settle(50)
            for _ in range(3):
                assert await speaks(await begun(served), context), "those that are done are not under way"

    with secure(tmp_path) as (tls, context), asyncio.Runner(loop_factory=loops) as runner:
        runner.run(body(tls, context))


@both
def test_a_node_that_stops_closes_those_that_wait_and_those_that_were_turned_away(
    loops: Loops, tmp_path: Path
) -> None:
    async def body(tls: TlsSettings, context: ssl.SSLContext) -> None:
        quotas = QuotaSet([(QuotaEntity(None, None, ""), {CONNECTION_RATE: 1.0})])
        async with serve(
            EchoHandler(), tls, quotas=quotas, max_connections=1, windows=2, window_seconds=9.0
        ) as served:
            clients = [await begun(served) for _ in range(2)]
            while not (served.problems or served.server.quotas._delayed):
                clients.append(await begun(served))
                assert len(clients) < 20
            assert served.server.quotas.waiting > 0
        assert all([await client.ended() for client in clients])

    with secure(tmp_path) as (tls, context), asyncio.Runner(loop_factory=loops) as runner:
        runner.run(body(tls, context))


@both
def test_the_time_of_a_login_begins_with_its_turn(loops: Loops) -> None:
    async def body() -> None:
        short: dict[str, Any] = {"login_seconds": 1.2, "sweep_seconds": 0.05}
        async with serve(
            EchoHandler(), mechanisms=("PLAIN",), max_connections=1, max_logging_in=1, **short
        ) as served:
            first, second = await begun(served), await begun(served)
            assert await first.ended(), "it did not log in, and has no right to make the other wait"
            await asyncio.sleep(0.3)  # the times of logins are looked at meanwhile
            second.writer.write(api_versions(1))
            assert await second.answer() == 1, "it waited as long as a login may take"
            third = await begun(served)
            third.writer.write(api_versions(1))
            assert served.server.logging_in == 1, "one that waits is asked for no login"
            assert await second.ended()
            assert await third.answer() == 1
            assert served.reasons() == ["not_logged_in"] * 2

    with asyncio.Runner(loop_factory=loops) as runner:
        runner.run(body())


@both
def test_one_whose_turn_never_comes_is_closed_in_time(loops: Loops) -> None:
    async def body() -> None:
        async with serve(EchoHandler(), max_connections=1, sweep_seconds=0.05, idle_seconds=1.5) as served:
            first = await begun(served)
            hasty = socket.create_connection(("127.0.0.1", served.server.port))
            hasty.sendall(init(9))  # uvloop reads what is there when it accepts
            second = Client(*await asyncio.open_connection(sock=hasty))
            served.clients.append(second)
            ended = asyncio.ensure_future(second.ended())
            while not ended.done():
                assert await speaks(first, None)
                await asyncio.sleep(0.02)
            assert [one.message for one in served.problems] == ["no turn among max_connections for 1.5 s"]

    with asyncio.Runner(loop_factory=loops) as runner:
        runner.run(body())
