"""A configuration of a topic or a group: its name, type, default and limits, and the building of a set.

Values are kept as text in one canonical form, because that is what Kafka's protocol carries and because
equal settings must give equal snapshots. Types, limits and error texts are those of Kafka's ConfigDef.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from strandline.statemachine.controller.controller_commands import ConfigChange, ConfigOperation
from strandline.statemachine.kafka_errors import KafkaError, Refused

T = TypeVar("T")
Configs = Mapping[str, str]
"""Configurations that a topic or group sets, by name, in the order of the names; values are canonical."""


class InvalidConfig(ValueError):
    """A value that Kafka does not accept; the text is Kafka's own."""


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """One config: its parser, its text form, and its default."""

    name: str
    default: T
    parse: Callable[[str], T]
    """Parse a value. A ValueError's text completes "Invalid value ... for configuration ...: "."""
    type: str

    def of(self, configs: Configs) -> T:
        """The value in force for a topic with these configs."""
        text = configs.get(self.name)
        return self.default if text is None else self.parse(text)

    def canonical(self, text: str) -> str:
        """The one way to write what `text` says; raises InvalidConfig."""
        try:
            return self.text(self.parse(text if self.type == "STRING" else text.strip()))
        except ValueError as error:
            raise InvalidConfig(f"Invalid value {text} for configuration {self.name}: {error}") from None

    @staticmethod
    def text(value: object) -> str:
        """A value as Kafka writes it."""
        if isinstance(value, bool):
            return "true" if value else "false"
        return ",".join(value) if isinstance(value, tuple) else str(value)


_WHOLE = re.compile(r"[+-]?[0-9]{1,20}")
_DECIMAL = re.compile(r"[+-]?([0-9]{1,20}\.?[0-9]{0,20}|\.[0-9]{1,20})([eE][+-]?[0-9]{1,3})?")
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


def _within(value: float, low: float, high: float) -> None:
    if value < low:
        raise ValueError(f"Value must be at least {low}")
    if value > high:
        raise ValueError(f"Value must be no more than {high}")


def _number(name: str, default: int, kind: str, largest: int, low: int, high: int) -> Setting[int]:
    def parse(text: str) -> int:
        if not _WHOLE.fullmatch(text) or not -largest - 1 <= (value := int(text)) <= largest:
            raise ValueError(f"Not a number of type {kind}")
        _within(value, low, high)
        return value

    return Setting(name, default, parse, kind)


def int_setting(name: str, default: int, low: int, high: int = INT_MAX) -> Setting[int]:
    return _number(name, default, "INT", INT_MAX, low, high)


def long_setting(name: str, default: int, low: int) -> Setting[int]:
    return _number(name, default, "LONG", LONG_MAX, low, LONG_MAX)


def ratio_setting(name: str, default: float) -> Setting[float]:
    def parse(text: str) -> float:
        if not _DECIMAL.fullmatch(text):
            raise ValueError("Not a number of type DOUBLE")
        _within(float(text), 0, 1)
        return abs(float(text))  # -0.0 is 0.0

    return Setting(name, default, parse, "DOUBLE")


def boolean_setting(name: str, default: bool) -> Setting[bool]:
    def parse(text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ValueError("Expected value to be either true or false")
        return text.lower() == "true"

    return Setting(name, default, parse, "BOOLEAN")


def choice_setting(name: str, default: str, *valid: str) -> Setting[str]:
    def parse(text: str) -> str:
        if text not in valid:
            raise ValueError(f"String must be one of: {', '.join(valid)}")
        return text

    return Setting(name, default, parse, "STRING")


def choices_setting(name: str, default: tuple[str, ...], *valid: str) -> Setting[tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        values = tuple(part.strip() for part in text.split(",")) if text else ()
        if not set(values) <= set(valid):
            raise ValueError(f"String must be one of: {', '.join(valid)}")
        if len(set(values)) != len(values):
            raise ValueError("values must not be duplicated")
        return values

    return Setting(name, default, parse, "LIST")


def default_only(setting: Setting[T], reason: str) -> Setting[T]:
    """One that cannot be set to anything else: what its default says is how things are here."""

    def parse(text: str) -> T:
        if (value := setting.parse(text)) != setting.default:
            raise ValueError(reason)
        return value

    return replace(setting, parse=parse)


def list_setting(name: str) -> Setting[tuple[str, ...]]:
    return Setting(name, (), lambda text: tuple(part.strip() for part in text.split(",") if text), "LIST")


class Table:
    """The configs that one kind of resource has, by name in the order of the names."""

    def __init__(
        self, what: str, settings: Iterable[Setting[Any]], conflict: Callable[[Configs], str | None]
    ) -> None:
        """`what` has them, in a word; `conflict` says why valid values do not go together, if they do not."""
        self.settings: dict[str, Setting[object]] = {
            setting.name: setting for setting in sorted(settings, key=lambda one: one.name)
        }
        self._what = what
        self._conflict = conflict

    def from_pairs(self, pairs: Iterable[tuple[str, str | None]]) -> Configs | Refused:
        """Configs as CreateTopics and AlterConfigs give them; a repeated name counts as given last."""
        wanted = dict(pairs)
        if nulls := sorted(name for name, value in wanted.items() if value is None):
            names = ", ".join(nulls)
            reason = f"Null value not supported for {self._what} configs: {names}"
            return Refused(KafkaError.INVALID_CONFIG, reason)
        return self._checked({name: value for name, value in wanted.items() if value is not None})

    def changed(self, configs: Configs, changes: Sequence[ConfigChange]) -> Configs | Refused:
        """Configs after IncrementalAlterConfigs: all changes or none."""
        names = [change.name for change in changes]
        if len(set(names)) != len(names):
            return Refused(KafkaError.INVALID_REQUEST, "Error due to duplicate config keys")
        result = dict(configs)
        for operation, name, value in changes:
            if operation is ConfigOperation.DELETE:
                result.pop(name, None)
            elif value is None:
                return Refused(KafkaError.INVALID_REQUEST, f"Null value not supported for : {name}")
            elif operation is ConfigOperation.SET:
                result[name] = value
            else:
                setting = self.settings.get(name)
                if setting is None or setting.type != "LIST":
                    reason = f"Can't {operation.name} to key {name} because its type is not LIST."
                    return Refused(KafkaError.INVALID_CONFIG, reason)
                result[name] = _combined(operation, setting.text(setting.of(configs)), value)
        return self._checked(result)

    def _checked(self, configs: Configs) -> Configs | Refused:
        try:
            canonical = {name: self._setting(name).canonical(configs[name]) for name in sorted(configs)}
        except InvalidConfig as error:
            return Refused(KafkaError.INVALID_CONFIG, str(error))
        reason = self._conflict(canonical)
        return canonical if reason is None else Refused(KafkaError.INVALID_CONFIG, reason)

    def _setting(self, name: str) -> Setting[object]:
        setting = self.settings.get(name)
        if setting is None:
            raise InvalidConfig(f"Unknown {self._what} config name: {name}")
        return setting


def _combined(operation: ConfigOperation, present: str, given: str) -> str:
    values = [part for part in present.split(",") if part]
    for part in map(str.strip, given.split(",")):
        if operation is ConfigOperation.APPEND and part not in values:
            values.append(part)
        elif operation is ConfigOperation.SUBTRACT and part in values:
            values.remove(part)
    return ",".join(values)
