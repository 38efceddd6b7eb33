"""What may stand on a command line in the place of a name, a number, a time or a URL."""

from __future__ import annotations

WORDS = [
    "", " ", "-1", "0", "1", "nan", "inf", "-inf", "1e400", "99999999999999999999", "0x10", "\uff11",
    "\udcff", "\n", "a" * 5000, "ä", "../..", "/dev/null", "/proc/self/mem", "/", "~", "=", "a=", "=b", "a=b",
    "a.b=c",
    "[", "[[", "{}", "--", "-", "*", "[red]x[/red]", "http://", "s3://", "s3:///x", "memory://", "foo",
    "foo:", ":1", "[::1]", "[::1]:", "host:99999", "1" * 400, "%s%n", "2026-99-99", "9999-12-31T23:59:59",
    "0001-01-01", "15m", "99999999999999999d", "beginning", "__consumer_offsets", ".", "a b", "node.id=7",
]  # fmt: skip
