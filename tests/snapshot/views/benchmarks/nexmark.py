"""Nexmark's auctions (https://github.com/nexmark/nexmark), with a key for bids: they change and go too."""

from __future__ import annotations

import datetime as dt
from typing import ClassVar, Final

from strandline.statemachine.views.types import Type
from tests.snapshot.views.benchmarks.changing import START, Changing
from tests.snapshot.views.deltas import Row

_BIGINT, _STRING, _TIME = Type.BIGINT, Type.STRING, Type.TIMESTAMP


class Nexmark(Changing):
    """Persons sell in auctions, others bid; `side` is the side input of query 13."""

    tables: ClassVar = {
        "person": (
            {
                "id": _BIGINT, "name": _STRING, "email": _STRING, "city": _STRING, "state": _STRING,
                "ts": _TIME,
            },
            1,
        ),
        "auction": (
            {
                "id": _BIGINT, "item": _STRING, "initial": _BIGINT, "reserve": _BIGINT, "ts": _TIME,
                "expires": _TIME, "seller": _BIGINT, "category": _BIGINT,
            },
            1,
        ),
        "bid": (
            {
                "id": _BIGINT, "auction": _BIGINT, "bidder": _BIGINT, "price": _BIGINT, "channel": _STRING,
                "url": _STRING, "ts": _TIME,
            },
            1,
        ),
        "side": ({"k": _BIGINT, "value": _STRING}, 1),
    }  # fmt: skip

    def counts(self) -> dict[str, int]:
        return {"person": 12, "auction": 15, "bid": 60, "side": 4}

    def new(self, table: str) -> Row:
        draw, pick = self.random, self.random.choice
        at = START + dt.timedelta(seconds=draw.randrange(60 * 60 * 30))
        number = draw.randrange(1000)
        match table:
            case "person":
                name, city, state = f"p{number}", pick(["Bend", "Boise"]), pick(["OR", "ID", "NY"])
                return number, name, f"{name}@x", city, state, at
            case "auction":
                return (
                    number, f"item {number}", draw.randrange(100), draw.randrange(1000), at,
                    at + dt.timedelta(hours=draw.randrange(30)), self.pick("person"), pick([10, 11, 12]),
                )  # fmt: skip
            case "bid":
                channel = pick(["Google", "Baidu", "Apple", "channel-7"])
                url = f"https://www.x.com/{pick(['a', 'b'])}/{draw.randrange(9)}/item.htm?query=1"
                of, price = (self.pick("auction"), self.pick("person")), draw.randrange(500) * 10_000
                return number, *of, price, channel, url, at
            case _:
                return draw.randrange(10), pick(["low", "high"])


QUERIES: Final = {
    "q0": "SELECT id, auction, bidder, price, ts FROM bid",
    "q1": "SELECT id, auction, bidder, 0.908D * price AS price, ts FROM bid",
    "q2": "SELECT id, auction, price FROM bid WHERE auction % 7 = 0",
    "q3": """SELECT a.id, p.name, p.city, p.state FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND (p.state = 'OR' OR p.state = 'ID' OR p.state = 'CA')""",
    "q4": """SELECT q.category, avg(q.final) AS a FROM (SELECT max(b.price) AS final, a.category, a.id
        FROM auction a JOIN bid b ON a.id = b.auction WHERE b.ts BETWEEN a.ts AND a.expires
        GROUP BY a.id, a.category) q GROUP BY q.category""",
    "q7": """SELECT b.id, b.auction, b.price, b.bidder, b.ts, m.start FROM
        (SELECT id, auction, price, bidder, ts, window(ts, '10 minutes').start AS start FROM bid) b JOIN
        (SELECT max(price) AS most, window(ts, '10 minutes').start AS start FROM bid
        GROUP BY 2) m ON b.price = m.most AND b.start = m.start""",
    "q8": """SELECT p.id, p.name, p.start FROM (SELECT id, name, window(ts, '12 hours').start AS start,
        window(ts, '12 hours').end AS finish FROM person GROUP BY 1, 2, 3, 4) p
        JOIN (SELECT seller, window(ts, '12 hours').start AS start FROM auction GROUP BY 1, 2) a
        ON p.id = a.seller AND p.start = a.start GROUP BY p.id, p.name, p.start""",
    "q9": """SELECT id, item, auction, bidder, price, bid_at FROM (SELECT a.id, a.item, b.auction, b.bidder,
        b.price,
        b.ts AS bid_at, row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.ts, b.id) AS r
        FROM auction a JOIN bid b ON a.id = b.auction WHERE b.ts BETWEEN a.ts AND a.expires) WHERE r <= 1""",
    "q13": """SELECT b.id, b.auction, b.bidder, b.price, b.ts, s.value FROM bid b
        JOIN side s ON b.auction % 10 = s.k""",
    "q14": """SELECT id, auction, bidder, 0.908D * price AS price, CASE WHEN hour(ts) >= 8 AND hour(ts) <= 18
        THEN 'dayTime' WHEN hour(ts) <= 6 OR hour(ts) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS kind, ts
        FROM bid WHERE 0.908D * price > 1000000 AND 0.908D * price < 50000000""",
    "q15": """SELECT CAST(ts AS DATE) AS day, count(*) AS total, count(*) FILTER (WHERE price < 10000) AS low,
        count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS middle,
        count(DISTINCT bidder) AS bidders, count(DISTINCT bidder) FILTER (WHERE price < 1000000) AS
        some_bidders,
        count(DISTINCT auction) AS auctions, count(DISTINCT auction) FILTER (WHERE price >= 1000000) AS dear
        FROM bid GROUP BY CAST(ts AS DATE)""",
    "q16": """SELECT channel, CAST(ts AS DATE) AS day, max(hour(ts)) AS latest, count(*) AS total,
        count(DISTINCT bidder) AS bidders, count(DISTINCT auction) FILTER (WHERE price < 1000000) AS auctions
        FROM bid GROUP BY channel, CAST(ts AS DATE)""",
    "q17": """SELECT auction, CAST(ts AS DATE) AS day, count(*) AS total,
        count(*) FILTER (WHERE price < 1000000) AS cheap, min(price) AS least, max(price) AS most,
        avg(price) AS mean, sum(price) AS s FROM bid GROUP BY auction, CAST(ts AS DATE)""",
    "q18": """SELECT bidder, auction, price, ts FROM (SELECT *, row_number() OVER (PARTITION BY bidder,
        auction
        ORDER BY ts DESC, id) AS r FROM bid) WHERE r <= 1""",
    "q19": """SELECT id, auction, bidder, price, r FROM (SELECT *, row_number() OVER (PARTITION BY auction
        ORDER BY price DESC, id) AS r FROM bid) WHERE r <= 10""",
    "q20": """SELECT b.id, b.auction, b.bidder, b.price, a.item, a.initial, a.reserve, a.seller, a.category
        FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10""",
    "q22": """SELECT id, auction, bidder, price, channel, split_part(url, '/', 4) AS dir1,
        split_part(url, '/', 5) AS dir2, split_part(url, '/', 12) AS dir3 FROM bid""",
}
REFUSED: Final = {
    "q5": """SELECT auction, count(*) AS n FROM bid
        GROUP BY auction, window(ts, '10 seconds', '2 seconds').start""",
    "q6": """SELECT seller, avg(final) OVER (PARTITION BY seller ORDER BY ts ROWS BETWEEN 10 PRECEDING AND
        CURRENT ROW)
        AS a FROM (SELECT a.seller, max(b.price) AS final, b.ts FROM auction a JOIN bid b ON a.id = b.auction
        GROUP BY a.seller, b.ts)""",
    "q11": "SELECT bidder, count(*) AS n FROM bid GROUP BY bidder, session_window(ts, '10 seconds')",
    "q12": "SELECT bidder, count(*) AS n FROM bid GROUP BY bidder, window(now(), '10 seconds').start",
    "q21": """SELECT id, CASE WHEN lower(channel) = 'apple' THEN '0'
        ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END AS channel FROM bid""",
}
"""Those that are refused, with the part that is: docs/views.md has the reasons. q10 writes files."""
