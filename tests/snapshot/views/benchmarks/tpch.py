"""TPC-H's orders. Prices are quarters, discounts and taxes parts of a power of two: their sums are exact."""

from __future__ import annotations

import datetime as dt
from typing import ClassVar, Final

from strandline.statemachine.views.types import Type
from tests.snapshot.views.benchmarks.changing import Changing
from tests.snapshot.views.deltas import Row

_INT, _STRING, _DOUBLE, _DATE = Type.INT, Type.STRING, Type.DOUBLE, Type.DATE
_FIRST: Final = dt.date(1993, 1, 1)
NATIONS: Final = ("FRANCE", "GERMANY", "BRAZIL", "JAPAN")


class TpcH(Changing):
    """Eight tables in which all rows come, change and go."""

    tables: ClassVar = {
        "region": ({"r_regionkey": _INT, "r_name": _STRING}, 1),
        "nation": ({"n_nationkey": _INT, "n_name": _STRING, "n_regionkey": _INT}, 1),
        "supplier": (
            {
                "s_suppkey": _INT, "s_name": _STRING, "s_nationkey": _INT, "s_acctbal": _DOUBLE,
                "s_comment": _STRING,
            },
            1,
        ),
        "customer": (
            {
                "c_custkey": _INT, "c_name": _STRING, "c_nationkey": _INT, "c_phone": _STRING,
                "c_acctbal": _DOUBLE, "c_mktsegment": _STRING,
            },
            1,
        ),
        "part": (
            {
                "p_partkey": _INT, "p_name": _STRING, "p_brand": _STRING, "p_type": _STRING, "p_size": _INT,
                "p_container": _STRING,
            },
            1,
        ),
        "partsupp": (
            {"ps_partkey": _INT, "ps_suppkey": _INT, "ps_availqty": _INT, "ps_supplycost": _DOUBLE},
            2,
        ),
        "orders": (
            {
                "o_orderkey": _INT, "o_custkey": _INT, "o_orderstatus": _STRING, "o_totalprice": _DOUBLE,
                "o_orderdate": _DATE, "o_orderpriority": _STRING, "o_shippriority": _INT,
                "o_comment": _STRING,
            },
            1,
        ),
        "lineitem": (
            {
                "l_orderkey": _INT, "l_linenumber": _INT, "l_partkey": _INT, "l_suppkey": _INT,
                "l_quantity": _DOUBLE, "l_extendedprice": _DOUBLE, "l_discount": _DOUBLE, "l_tax": _DOUBLE,
                "l_returnflag": _STRING, "l_linestatus": _STRING, "l_shipdate": _DATE, "l_commitdate": _DATE,
                "l_receiptdate": _DATE, "l_shipinstruct": _STRING, "l_shipmode": _STRING,
            },
            2,
        ),
    }  # fmt: skip

    def counts(self) -> dict[str, int]:
        return {
            "region": 4, "nation": 8, "supplier": 8, "customer": 15, "part": 20, "partsupp": 50, "orders": 60,
            "lineitem": 250,
        }  # fmt: skip

    def new(self, table: str) -> Row:
        draw, pick = self.random, self.random.choice
        day = _FIRST + dt.timedelta(days=draw.randrange(1000))
        price = draw.randrange(40, 4000) / 4
        match table:
            case "region":
                number = draw.randrange(3)
                return number, ["EUROPE", "ASIA", "AMERICA"][number]
            case "nation":
                number = draw.randrange(4)
                return number, NATIONS[number], self.pick("region")
            case "supplier":
                number = draw.randrange(12)
                comment = pick(["fine", "some Customer with Complaints", "plain"])
                return number, f"Supplier#{number}", self.pick("nation"), price, comment
            case "customer":
                number = draw.randrange(40)
                segment = pick(["BUILDING", "MACHINERY"])
                return number, f"Customer#{number}", self.pick("nation"), f"1{number % 5}-555", price, segment
            case "part":
                name = f"{pick(['green', 'red'])} {pick(['almond', 'forest'])}"
                first, second = pick(["PROMO", "ECONOMY"]), pick(["ANODIZED", "POLISHED"])
                kind = f"{first} {second} {pick(['STEEL', 'TIN'])}"
                box = pick(["SM CASE", "MED BAG", "LG BOX"])
                return (
                    draw.randrange(30),
                    name,
                    f"Brand#{pick([12, 23, 34])}",
                    kind,
                    draw.randrange(1, 20),
                    box,
                )
            case "partsupp":
                return self.pick("part"), self.pick("supplier"), draw.randrange(100), price
            case "orders":
                comment = pick(["special deposits", "the special requests wake", "none"])
                return (
                    draw.randrange(200), self.pick("customer"), pick("OF"), price, day,
                    pick(["1-URGENT", "2-HIGH", "5-LOW"]), 0, comment,
                )  # fmt: skip
            case _:
                ship, commit, receipt = (day + dt.timedelta(days=draw.randrange(1, 60)) for _ in range(3))
                return (
                    self.pick("orders"), draw.randrange(1, 6), self.pick("part"), self.pick("supplier"),
                    float(draw.randrange(1, 50)), price, draw.randrange(3) / 16, draw.randrange(3) / 32,
                    pick("ANR"), pick("OF"), ship, commit, receipt,
                    pick(["DELIVER IN PERSON", "NONE"]), pick(["AIR", "AIR REG", "MAIL", "SHIP"]),
                )  # fmt: skip


_REVENUE: Final = "sum(l_extendedprice * (1 - l_discount))"
VIEWS: Final = {
    "q15": """revenue AS SELECT l_suppkey AS supplier_no, sum(l_extendedprice * (1 - l_discount)) AS
        total_revenue
        FROM lineitem WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-06-01' GROUP BY
        l_suppkey""",
}
QUERIES: Final = {
    "q1": f"""SELECT l_returnflag, l_linestatus, sum(l_quantity) AS sum_qty, sum(l_extendedprice) AS
        sum_base_price,
        {_REVENUE} AS sum_disc_price, sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS sum_charge,
        avg(l_quantity) AS avg_qty, avg(l_extendedprice) AS avg_price, avg(l_discount) AS avg_disc,
        count(*) AS count_order FROM lineitem WHERE l_shipdate <= DATE '1995-09-02'
        GROUP BY l_returnflag, l_linestatus""",
    "q3": f"""SELECT l_orderkey, {_REVENUE} AS revenue, o_orderdate, o_shippriority
        FROM customer, orders, lineitem WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey
        AND l_orderkey = o_orderkey AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1993-03-15'
        GROUP BY l_orderkey, o_orderdate, o_shippriority ORDER BY revenue DESC, o_orderdate, l_orderkey
        LIMIT 10""",
    "q4": """SELECT o_orderpriority, count(*) AS order_count FROM orders WHERE o_orderdate >= DATE
        '1993-07-01'
        AND o_orderdate < DATE '1994-10-01' AND EXISTS (SELECT * FROM lineitem WHERE l_orderkey = o_orderkey
        AND l_commitdate < l_receiptdate) GROUP BY o_orderpriority""",
    "q5": f"""SELECT n_name, {_REVENUE} AS revenue FROM customer, orders, lineitem, supplier, nation, region
        WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey
        AND c_nationkey = s_nationkey AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey
        AND r_name = 'ASIA' AND o_orderdate >= DATE '1993-01-01' AND o_orderdate < DATE '1995-06-01'
        GROUP BY n_name""",
    "q6": """SELECT sum(l_extendedprice * l_discount) AS revenue FROM lineitem WHERE l_shipdate >= DATE
        '1994-01-01'
        AND l_shipdate < DATE '1995-01-01' AND l_discount BETWEEN 0.05D AND 0.13D AND l_quantity < 24""",
    "q7": """SELECT supp_nation, cust_nation, l_year, sum(volume) AS revenue FROM (SELECT n1.n_name AS
        supp_nation,
        n2.n_name AS cust_nation, year(l_shipdate) AS l_year, l_extendedprice * (1 - l_discount) AS volume
        FROM supplier, lineitem, orders, customer, nation n1, nation n2 WHERE s_suppkey = l_suppkey
        AND o_orderkey = l_orderkey AND c_custkey = o_custkey AND s_nationkey = n1.n_nationkey
        AND c_nationkey = n2.n_nationkey AND ((n1.n_name = 'FRANCE' AND n2.n_name = 'GERMANY')
        OR (n1.n_name = 'GERMANY' AND n2.n_name = 'FRANCE'))) AS shipping GROUP BY supp_nation, cust_nation,
        l_year""",
    "q8": """SELECT o_year, sum(CASE WHEN nation = 'BRAZIL' THEN volume ELSE 0 END) / sum(volume) AS mkt_share
        FROM (SELECT extract(YEAR FROM o_orderdate) AS o_year, l_extendedprice * (1 - l_discount) AS volume,
        n2.n_name AS nation FROM part, lineitem, supplier, orders, customer, nation n1, nation n2, region
        WHERE p_partkey = l_partkey AND s_suppkey = l_suppkey AND l_orderkey = o_orderkey AND o_custkey =
        c_custkey
        AND c_nationkey = n1.n_nationkey AND n1.n_regionkey = r_regionkey AND r_name = 'AMERICA'
        AND s_nationkey = n2.n_nationkey AND o_orderdate BETWEEN DATE '1993-01-01' AND DATE '1996-12-31'
        AND p_type LIKE 'ECONOMY%') AS all_nations GROUP BY o_year""",
    "q9": """SELECT nation, o_year, sum(amount) AS sum_profit FROM (SELECT n_name AS nation,
        year(o_orderdate) AS o_year,
        l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity AS amount
        FROM part, lineitem, supplier, partsupp, orders, nation WHERE s_suppkey = l_suppkey
        AND ps_suppkey = l_suppkey AND ps_partkey = l_partkey AND p_partkey = l_partkey AND o_orderkey =
        l_orderkey
        AND s_nationkey = n_nationkey AND p_name LIKE '%green%') AS profit GROUP BY nation, o_year""",
    "q10": f"""SELECT c_custkey, c_name, {_REVENUE} AS revenue, c_acctbal, n_name, c_phone
        FROM customer, orders, lineitem, nation WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey
        AND o_orderdate >= DATE '1993-02-01' AND o_orderdate < DATE '1995-01-01' AND l_returnflag = 'R'
        AND c_nationkey = n_nationkey GROUP BY c_custkey, c_name, c_acctbal, c_phone, n_name
        ORDER BY revenue DESC, c_custkey LIMIT 20""",
    "q11": """SELECT g.ps_partkey, g.value FROM (SELECT ps_partkey, sum(ps_supplycost * ps_availqty) AS
        value, 1 AS one
        FROM partsupp, supplier, nation WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey
        AND n_name IN ('GERMANY', 'FRANCE') GROUP BY ps_partkey) g
        JOIN (SELECT sum(ps_supplycost * ps_availqty) * 0.05D AS least, 1 AS one FROM partsupp, supplier,
        nation
        WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name IN ('GERMANY', 'FRANCE')) t
        ON t.one = g.one WHERE g.value > t.least""",
    "q12": """SELECT l_shipmode, sum(CASE WHEN o_orderpriority = '1-URGENT' OR o_orderpriority = '2-HIGH'
        THEN 1 ELSE 0
        END) AS high, sum(CASE WHEN o_orderpriority <> '1-URGENT' AND o_orderpriority <> '2-HIGH' THEN 1
        ELSE 0 END)
        AS low FROM orders, lineitem WHERE o_orderkey = l_orderkey AND l_shipmode IN ('MAIL', 'SHIP')
        AND l_commitdate < l_receiptdate AND l_shipdate < l_commitdate GROUP BY l_shipmode""",
    "q13": """SELECT c_count, count(*) AS custdist FROM (SELECT c_custkey, count(o_orderkey) AS c_count
        FROM customer LEFT OUTER JOIN orders ON c_custkey = o_custkey AND o_comment NOT LIKE
        '%special%requests%'
        GROUP BY c_custkey) AS c_orders GROUP BY c_count""",
    "q14": f"""SELECT 100.00D * sum(CASE WHEN p_type LIKE 'PROMO%' THEN l_extendedprice * (1 - l_discount)
        ELSE 0 END) / {_REVENUE} AS promo_revenue FROM lineitem, part WHERE l_partkey = p_partkey
        AND l_shipdate >= DATE '1993-09-01' AND l_shipdate < DATE '1995-10-01'""",
    "q15": """SELECT s_suppkey, s_name, total_revenue FROM supplier, revenue,
        (SELECT max(total_revenue) AS most FROM revenue) m
        WHERE s_suppkey = supplier_no AND total_revenue = m.most""",
    "q16": """SELECT p_brand, p_type, p_size, count(DISTINCT ps_suppkey) AS supplier_cnt FROM partsupp, part
        WHERE p_partkey = ps_partkey AND p_brand <> 'Brand#12' AND p_type NOT LIKE 'PROMO POLISHED%'
        AND p_size IN (1, 4, 5, 9, 14, 19) AND NOT EXISTS (SELECT 1 FROM supplier WHERE s_suppkey = ps_suppkey
        AND s_comment LIKE '%Customer%Complaints%') GROUP BY p_brand, p_type, p_size""",
    "q18": """SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) AS q
        FROM customer, orders, lineitem WHERE o_orderkey IN (SELECT l_orderkey FROM lineitem GROUP BY
        l_orderkey
        HAVING sum(l_quantity) > 90) AND c_custkey = o_custkey AND o_orderkey = l_orderkey
        GROUP BY c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice
        ORDER BY o_totalprice DESC, o_orderdate, o_orderkey LIMIT 100""",
    "q19": f"""SELECT {_REVENUE} AS revenue FROM lineitem, part WHERE p_partkey = l_partkey
        AND l_shipinstruct = 'DELIVER IN PERSON' AND l_shipmode IN ('AIR', 'AIR REG')
        AND ((p_brand = 'Brand#12' AND p_container IN ('SM CASE', 'SM BOX') AND l_quantity >= 1
        AND l_quantity <= 11 AND p_size BETWEEN 1 AND 5) OR (p_brand = 'Brand#23'
        AND p_container IN ('MED BAG', 'MED BOX') AND l_quantity >= 10 AND l_quantity <= 40
        AND p_size BETWEEN 1 AND 10) OR (p_brand = 'Brand#34' AND l_quantity >= 20))""",
}
REFUSED: Final = {
    "q2": """SELECT s_name, p_partkey, ps_suppkey FROM part, partsupp, supplier WHERE p_partkey = ps_partkey
        AND s_suppkey = ps_suppkey AND ps_supplycost = (SELECT min(ps_supplycost) FROM partsupp x
        WHERE x.ps_partkey = p_partkey)""",
    "q17": """SELECT sum(l_extendedprice) / 7.0D AS avg_yearly FROM lineitem, part WHERE p_partkey = l_partkey
        AND l_quantity < (SELECT 0.2D * avg(l_quantity) FROM lineitem x WHERE x.l_partkey = p_partkey)""",
    "q20": """SELECT s_suppkey, s_name FROM supplier WHERE s_suppkey IN (SELECT ps_suppkey FROM partsupp
        WHERE ps_availqty > (SELECT 0.5D * sum(l_quantity) FROM lineitem WHERE l_partkey = ps_partkey))""",
    "q21": """SELECT s_name, count(*) AS numwait FROM supplier, lineitem l1 WHERE s_suppkey = l1.l_suppkey
        AND EXISTS (SELECT * FROM lineitem l2 WHERE l2.l_orderkey = l1.l_orderkey
        AND l2.l_suppkey <> l1.l_suppkey) GROUP BY s_name""",
    "q22": """SELECT substring(c_phone, 1, 2) AS cntrycode, count(*) AS numcust FROM customer
        WHERE c_acctbal > (SELECT avg(c_acctbal) FROM customer) GROUP BY substring(c_phone, 1, 2)""",
}
"""Those that are refused, with the part that is: docs/views.md has the reasons."""
