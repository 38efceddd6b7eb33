"""The regular expressions that consumers subscribe by (KIP-848) and tools filter by, as automata over names.

Their syntax is RE2's, which Kafka takes them for (`SubscriptionPattern`), and a name has to match as a whole.
What RE2 has not, back-references and looking environment, is refused here too. Topics' names are ASCII, so a
character beyond it matches none.
"""

from __future__ import annotations

import unicodedata
from typing import Final

from strandline.node.re2.automaton import (
    WORD,
    Automaton,
    Emit,
    InvalidPattern,
    alternation,
    assertion,
    one_of,
    repetition,
    sequence,
)

MAX_LENGTH: Final = 1_024
MAX_DEPTH: Final = 100
MAX_REPEAT: Final = 1_000
"""Of one `{n,m}`, and of those around it multiplied, as in RE2."""

_ASCII: Final = tuple(map(chr, range(128)))
_DIGIT: Final = frozenset("0123456789")
_SPACE: Final = frozenset("\t\n\f\r ")
_EVERY: Final = frozenset(_ASCII)
_ANY: Final = _EVERY - {"\n"}
_CLASSES: Final = {"d": _DIGIT, "w": WORD, "s": _SPACE}
_CONTROLS: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_POSIX: Final = {
    "alnum": WORD - {"_"},
    "alpha": WORD - _DIGIT - {"_"},
    "ascii": _EVERY,
    "blank": frozenset("\t "),
    "cntrl": frozenset(c for c in _ASCII if ord(c) < 32 or ord(c) == 127),
    "digit": _DIGIT,
    "graph": frozenset(c for c in _ASCII if 32 < ord(c) < 127),
    "lower": frozenset("abcdefghijklmnopqrstuvwxyz"),
    "print": frozenset(c for c in _ASCII if 32 <= ord(c) < 127),
    "punct": frozenset(c for c in _ASCII if 32 < ord(c) < 127 and not c.isalnum()),
    "space": _SPACE | {"\v"},
    "upper": frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    "word": WORD,
    "xdigit": frozenset("0123456789abcdefABCDEF"),
}


def compiled(text: str) -> Automaton:
    """The automaton of a pattern; raises InvalidPattern."""
    if len(text) > MAX_LENGTH:
        raise InvalidPattern(f"it is longer than {MAX_LENGTH} characters")
    return Automaton(_Parser(text).whole())


class _Parser:
    """Recursive descent over the text; each part becomes a function that emits it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._repeats = 1
        """Highest product of nested repetitions in the part that was parsed last."""

    def whole(self) -> Emit:
        emit = self._alternatives(fold=False)
        if self._at < len(self._text):
            raise InvalidPattern("it has a ')' too many")
        return emit

    def _peek(self, width: int = 1) -> str:
        return self._text[self._at : self._at + width]

    def _take(self, expected: str) -> bool:
        if self._text.startswith(expected, self._at):
            self._at += len(expected)
            return True
        return False

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise InvalidPattern("it ends in the middle")
        self._at += 1
        return self._text[self._at - 1]

    def _until(self, end: str) -> str:
        found = self._text.find(end, self._at)
        if found < 0:
            raise InvalidPattern(f"a {end!r} is missing")
        taken, self._at = self._text[self._at : found], found + len(end)
        return taken

    def _alternatives(self, fold: bool) -> Emit:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise InvalidPattern(f"its groups are more than {MAX_DEPTH} deep")
        branches: list[list[Emit]] = [[]]
        repeats = 1
        while (character := self._peek()) not in ("", ")"):
            if character == "|":
                self._at += 1
                branches.append([])
            elif character == "(" and (flags := self._flags()) is not None:
                fold = _folded(flags, fold)
            else:
                branches[-1].append(self._repeated(fold))
                repeats = max(repeats, self._repeats)
        self._depth -= 1
        self._repeats = repeats
        return lambda program, after: alternation(program, [sequence(p, program, after) for p in branches])

    def _flags(self) -> str | None:
        """The flags of `(?flags)`, which hold for the rest of the group around it; None: something else."""
        end = self._text.find(")", self._at)
        flags = self._text[self._at + 2 : end] if end > 0 and self._peek(2) == "(?" else ""
        if not flags or flags.strip("imsU-"):
            return None
        self._at = end + 1
        return flags

    def _repeated(self, fold: bool) -> Emit:
        emit = self._atom(fold)
        while (bounds := self._quantifier()) is not None:
            low, high = bounds
            self._repeats *= max(low, high or 1, 1)
            if self._repeats > MAX_REPEAT:
                raise InvalidPattern(f"it repeats something more than {MAX_REPEAT} times")
            emit = repetition(emit, low, high)
        return emit

    def _quantifier(self) -> tuple[int, int | None] | None:
        bounds: tuple[int, int | None]
        if self._peek() in ("*", "+", "?"):
            bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}[self._next()]
        elif self._peek() == "{":
            low, comma, high = self._text[self._at + 1 : self._text.find("}", self._at)].partition(",")
            if not _number(low) or not (high == "" or _number(high)) or "}" not in self._text[self._at :]:
                return None  # RE2 takes such a brace for itself
            self._until("}")
            bounds = int(low), int(high) if high else None if comma else int(low)
            if max(bounds[0], bounds[1] or 0) > MAX_REPEAT:
                raise InvalidPattern(f"it repeats something more than {MAX_REPEAT} times")
            if bounds[1] is not None and bounds[1] < bounds[0]:
                raise InvalidPattern("a repetition's bounds are the wrong way round")
        else:
            return None
        self._take("?")  # reluctant: the same names match
        if self._peek() in ("*", "+", "?"):
            raise InvalidPattern("a repetition is repeated without a group")
        return bounds

    def _atom(self, fold: bool) -> Emit:
        self._repeats = 1
        character = self._next()
        match character:
            case "(":
                return self._group(fold)
            case "[":
                return one_of(self._bracket(fold))
            case ".":
                return one_of(_ANY)
            case "^" | "$":
                return assertion(character)
            case "*" | "+" | "?":
                raise InvalidPattern(f"nothing stands before a {character!r}")
            case "\\":
                return self._escape(fold)
            case _:
                return one_of(_letter(character, fold))

    def _group(self, fold: bool) -> Emit:
        if self._take("?"):
            if self._take("P<") or self._take("<"):
                if not self._until(">").isidentifier():
                    raise InvalidPattern("a group has no name, or looks behind itself")
            else:
                flags = self._until(":")
                if flags.strip("imsU-"):
                    raise InvalidPattern(f"(?{flags[:1]} is not known")
                fold = _folded(flags, fold)
        emit = self._alternatives(fold)
        if not self._take(")"):
            raise InvalidPattern("a ')' is missing")
        return emit

    def _escape(self, fold: bool) -> Emit:
        character = self._next()
        match character:
            case "A":
                return assertion("^")
            case "z":
                return assertion("$")
            case "b" | "B":
                return assertion(character)
            case "Q":
                quoted, self._at = self._quoted()
                parts = [one_of(_letter(one, fold)) for one in quoted]
                return lambda program, after: sequence(parts, program, after)
            case _:
                self._at -= 1
                return one_of(self._escaped(fold))

    def _quoted(self) -> tuple[str, int]:
        end = self._text.find("\\E", self._at)
        return (self._text[self._at :], len(self._text)) if end < 0 else (self._text[self._at : end], end + 2)

    def _escaped(self, fold: bool) -> frozenset[str]:
        """The characters of an escape, read from behind its backslash, inside a class or outside."""
        character = self._next()
        if character.lower() in _CLASSES:
            known = _CLASSES[character.lower()]
            return known if character.islower() else _EVERY - known
        if character in ("p", "P"):
            name = self._until("}") if self._take("{") else self._next()
            negated = (character == "P") != name.startswith("^")
            return _category(name.lstrip("^"), negated)
        return _letter(self._escaped_letter(character), fold)

    def _escaped_letter(self, character: str) -> str:
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character == "x":
            digits = self._until("}") if self._take("{") else self._next() + self._next()
            try:
                return chr(int(digits, 16))
            except (ValueError, OverflowError):
                raise InvalidPattern(f"\\x{digits} is not a character") from None
        if character.isalnum() or not character.isascii():
            raise InvalidPattern(f"\\{character} is not known")
        return character

    def _bracket(self, fold: bool) -> frozenset[str]:
        negated = self._take("^")
        members: set[str] = set()
        first = True
        while first or self._peek() != "]":
            first = False
            if self._take("[:"):
                name = self._until(":]")
                known = _POSIX.get(name.removeprefix("^"))
                if known is None:
                    raise InvalidPattern(f"[:{name}:] is not known")
                members |= _EVERY - known if name.startswith("^") else known
                continue
            low = self._bracket_part(fold)
            if self._peek() == "-" and self._peek(2) not in ("-]", "-"):
                self._at += 1
                members |= _span(low, self._bracket_part(fold), fold)
            else:
                members |= low if isinstance(low, frozenset) else _letter(low, fold)
        self._at += 1
        return _EVERY - members if negated else frozenset(members)

    def _bracket_part(self, fold: bool) -> frozenset[str] | str:
        """A single character, or a class by an escape."""
        character = self._next()
        if character != "\\":
            return character
        if self._peek().lower() in (*_CLASSES, "p"):
            return self._escaped(fold)
        return self._escaped_letter(self._next())


def _number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5


def _folded(flags: str, fold: bool) -> bool:
    on, _, off = flags.partition("-")
    return ("i" in on or fold) and "i" not in off


def _letter(character: str, fold: bool) -> frozenset[str]:
    both = (character.lower(), character.upper()) if fold else (character,)
    return frozenset(one for one in both if one.isascii())


def _span(low: frozenset[str] | str, high: frozenset[str] | str, fold: bool) -> frozenset[str]:
    if isinstance(low, frozenset) or isinstance(high, frozenset) or low > high:
        raise InvalidPattern("a range in a class has no two ends, or they are the wrong way round")
    between = (c for c in _ASCII if low <= c <= high)
    return frozenset().union(*(_letter(c, fold) for c in between))


def _category(name: str, negated: bool) -> frozenset[str]:
    if name == "Any":
        known = _EVERY
    elif name == "Latin":
        known = _POSIX["alpha"]
    else:
        known = frozenset(c for c in _ASCII if name and unicodedata.category(c).startswith(name))
        if not known:
            raise InvalidPattern(f"\\p{{{name}}} is not known, or has no character that topics may have")
    return _EVERY - known if negated else known
