"""Budget and prices of a store's requests, as a configuration writes them."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

_BUDGET = re.compile(r"(\d+(?:\.\d+)?) ([A-Z]{3})/month")


class MonthlyBudget(NamedTuple):
    """So much money a month; written `50 USD/month`."""

    amount: float
    currency: str

    def __str__(self) -> str:
        return f"{self.amount:g} {self.currency}/month"


def monthly_budget(value: Any) -> MonthlyBudget:
    """Reads `50 USD/month`. Raises ValueError unless it is an amount above 0 and a currency."""
    match = _BUDGET.fullmatch(value) if isinstance(value, str) else None
    if match is None or not float(match[1]):
        raise ValueError(
            f'{value!r} is no budget: write an amount, a currency and "/month", like "50 USD/month", the '
            "currency that of storage.put_price and storage.get_price; leave it out for no limit"
        )
    return MonthlyBudget(float(match[1]), match[2])


def price(value: Any) -> float:
    """Reads the price of a million requests. Raises ValueError unless it is above 0."""
    if type(value) not in (int, float) or not 0 < value < 1e6:
        raise ValueError(f"{value!r} is no price: write what a million requests cost, like 5.0")
    return float(value)
