"""The programs of the demonstration of views: the second one changes a view of the first and adds a join."""

from __future__ import annotations

from typing import Final

_TABLES: Final = """
CREATE TABLE flights (number BIGINT, carrier STRING, origin STRING, tailnum STRING, time_hour STRING,
  arr_delay DOUBLE, dep_delay DOUBLE);
CREATE TABLE planes (tailnum STRING NOT NULL PRIMARY KEY, manufacturer STRING, seats INT)
  OPTIONS (mode 'upsert');
CREATE TABLE weather (origin STRING, time_hour STRING, visib DOUBLE, PRIMARY KEY (origin, time_hour))
  OPTIONS (mode 'upsert');
CREATE VIEW by_carrier AS SELECT carrier, count(*) AS flights, avg(arr_delay) AS delay, max(number) AS last
  FROM flights GROUP BY carrier;
"""
FIRST: Final = f"""{_TABLES}
CREATE VIEW by_airport AS SELECT origin, count(*) AS flights, avg(dep_delay) AS delay
  FROM flights GROUP BY origin;
"""
SECOND: Final = f"""{_TABLES}
  CREATE VIEW by_airport AS SELECT origin, count(*) AS flights, avg(dep_delay) AS delay, max(dep_delay) AS
  worst, count(*) FILTER (WHERE dep_delay > 60) AS late FROM flights GROUP BY origin; CREATE VIEW in_weather
  AS SELECT p.manufacturer, CASE WHEN w.visib < 5 THEN 'poor' ELSE 'good' END AS sight, count(*) AS flights,
  avg(f.dep_delay) AS delay, sum(p.seats) AS seats FROM flights f JOIN planes p ON p.tailnum = f.tailnum
  JOIN weather w ON w.origin = f.origin AND w.time_hour = f.time_hour GROUP BY 1, 2;
"""
UNCHANGED: Final = "by_carrier"
