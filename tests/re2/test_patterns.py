"""Patterns that consumers subscribe by: RE2's syntax, whole names, and no pattern that takes long."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.node.re2.automaton import InvalidPattern
from strandline.node.re2.patterns import MAX_LENGTH, compiled

names = st.text("aAbB1._-", min_size=1, max_size=6)  # Python has its own idea of what \B is in ""
ATOMS = r"a A b 1 \. - _ . [ab] [^a] [a-b1] [-a] [a-] [\d.] \d \W \w ^ $ \b \B (?:) \x61 [^\w] \-"
atoms = st.sampled_from(ATOMS.split())
patterns = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "*?", "{2}", "{1,2}", "{1,}", "{0}"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
        inner.map(lambda one: f"({one})"),
        inner.map(lambda one: f"(?i:{one})"),
    ),
    max_leaves=8,
)


@settings(max_examples=400, deadline=None)
@given(pattern=patterns, tried=st.lists(names, min_size=1, max_size=8))
def test_it_agrees_with_pythons_where_the_two_mean_the_same(pattern: str, tried: list[str]) -> None:
    automaton, python = compiled(pattern), re.compile(pattern, re.ASCII)
    for name in [*tried, *tried]:
        assert automaton.matches(name) == bool(python.fullmatch(name)), (pattern, name)


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("orders", ["orders"], ["orders2", "my-orders", "order", ""]),
        ("orders.*", ["orders", "orders-eu"], ["my-orders"]),
        ("", [""], ["a"]),
        ("|a", ["", "a"], ["aa"]),
        ("a||b", ["", "a", "b"], ["ab"]),
        ("(eu|us)-(?P<what>orders|items)", ["eu-orders", "us-items"], ["eu-", "de-orders"]),
        ("(?<what>a)b", ["ab"], ["b"]),
        (r"\Qa.b\E\d{2,3}", ["a.b12", "a.b123"], ["aXb12", "a.b1", "a.b1234"]),
        (r"\Qa.b", ["a.b"], ["aXb"]),
        ("(?i)Orders-[A-C]", ["orders-b", "ORDERS-C"], ["orders-d"]),
        ("(?i:o)rders", ["Orders", "orders"], ["ORDERS"]),
        ("((?i)a)b", ["Ab", "ab"], ["aB"]),
        ("(?i)a(?-i)b", ["Ab"], ["AB"]),
        ("(?s-m:a.)", ["ab"], ["a"]),
        (r"[[:alpha:]]+[^[:^digit:]]", ["ab1"], ["1", "ab"]),
        (r"[[:word:].]+", ["a_1.b"], ["a-b"]),
        (r"\p{Lu}\p{Ll}+\pN\P{L}", ["Abc1."], ["abc1.", "Abc1x"]),
        (r"\p{^Lu}", ["a"], ["A"]),
        (r"\p{Latin}+", ["aB"], ["a1"]),
        (r"\Aab\z", ["ab"], ["abc"]),
        (r"[]a]", ["]", "a"], ["b"]),
        (r"[^]a]", ["b"], ["]", "a"]),
        (r"a{,2}", ["a{,2}"], ["a", "aa"]),
        (r"a{x}", ["a{x}"], ["ax"]),
        (r"a{2,}", ["aa", "aaaa"], ["a"]),
        (r"(a*)*b", ["b", "aab"], ["a"]),
        (r"\x{61}\t", ["a\t"], ["a"]),
        ("ä|b", ["b"], ["ä", ""]),
        ("[ä-ö]?", [""], ["ä", "a"]),
        ("a^b|a$", ["a"], ["ab"]),
        (r"\ba\b-\bb\b", ["a-b"], []),
        (r"a\Bb|-\B-", ["ab", "--"], []),
        (r"a\bb|-\b-|a\B-|-\Ba", [], ["ab", "--", "a-", "-a"]),
    ],
)  # fmt: skip
def test_what_matches(pattern: str, matching: list[str], others: list[str]) -> None:
    automaton = compiled(pattern)
    assert [name for name in matching + others if automaton.matches(name)] == matching


NONE = r"""
    ( ) a) (a [a [] [a- [b-a] [\d-z] *a a** a+* (?=a) (?!a) (?<=a)b (?<!a)b (a)\1 \k<a> (?>a) (?z)a (?P<1>a)
    (?i a{2,1} a{1001} (a{40}){40} ((a{100}){100}){100} (((a{10}){10}){10}){2} (){1000}{1000}
    \p{Nope} \p{ [[:nope:]] \xzz \x{110000} \8 \ä \
"""


@pytest.mark.parametrize("pattern", [*NONE.split(), "(" * 200 + ")" * 200, "a" * (MAX_LENGTH + 1)])
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        compiled(pattern)


@pytest.mark.parametrize(
    "pattern", ["(a*)*b", "(a|a)*b", "(a|aa)+b", "(.*)(.*)(.*)(.*)(.*)b", "(a?){30}a{30}b", "([ab]*a){20}c"]
)
def test_what_would_hold_up_another_engine_takes_no_time(pattern: str) -> None:
    """For Python's, some of these would take longer than the universe has been there."""
    automaton = compiled(pattern)
    began = time.process_time()
    for number in range(300):
        assert not automaton.matches("a" * 200 + str(number))
    assert time.process_time() - began < 2.0


def test_what_takes_too_much_work_is_refused_in_time() -> None:
    """An automaton whose sets are all different: each name meets new ones."""
    automaton = compiled("[ab]*a[ab]{300}c?")
    began = time.process_time()
    names = (f"{number:0248b}".replace("0", "a").replace("1", "b") for number in range(100_000))
    with pytest.raises(InvalidPattern, match="too much work"):
        all(not automaton.matches(name) for name in names)
    assert time.process_time() - began < 3.0


def test_the_size_of_a_pattern_is_bounded() -> None:
    with pytest.raises(InvalidPattern, match="positions"):
        compiled("(abc){1000}")


def test_a_long_list_of_names_costs_a_look_up_a_character(monkeypatch: pytest.MonkeyPatch) -> None:
    automaton = compiled("(orders|items)-[a-z]+-[0-9]+")
    for number in range(100):
        assert automaton.matches(f"items-us-{number}")
    monkeypatch.setattr("strandline.node.re2.automaton.MAX_STEPS", 0)
    for number in range(1000, 10_000):
        assert automaton.matches(f"items-us-{number}")
