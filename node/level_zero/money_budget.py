"""A budget of money for a store's requests: so much a month, as a rate with a burst.

The bill is for all requests of a node, and only some can wait. Puts of level-zero objects wait until the
budget has one: batches gather meanwhile and objects grow. Reads, level one, checkpoints and listings are
never held back. They are paid from the same budget first, so what they cost the batches have to save.
docs/level-zero.md, "A budget of money".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from strandline.node.objectstore.requests import Requests

MONTH_SECONDS: Final = 31 * 24 * 3600.0
"""The longest month, so that none costs more."""
BURST_SECONDS: Final = 600.0
"""The budget of so long may be saved up, and so much may be owed; more is forgotten and counted."""
FIRST_SECONDS: Final = 60.0
"""A node begins with the budget of so long: one that starts often must not save anything up by that."""
OWN_SHARE: Final = 0.1
"""Of the budget is for puts of level-zero objects whatever else is requested: else they would never end while
consumers alone read for more than the budget."""
LONGEST_PUT_SECONDS: Final = 10.0
"""The longest that a budget keeps two puts apart, however much is owed: clients give up after 30 s."""


class Prices(NamedTuple):
    """Of one request each, in the budget's currency."""

    put: float
    """Also of a listing."""
    get: float


class MoneyBudget:
    """One node's share of a monthly budget. `now` is the loop's clock."""

    def __init__(
        self,
        share: Callable[[], float],
        prices: Prices,
        other: Callable[[], Requests],
        now: Callable[[], float],
    ) -> None:
        """`share()` is the present budget of a month: it changes with the number of nodes. `other` gives all
        requests but those that `spend` was told of; it may be late, and never goes down for long."""
        self._share = share
        self.spent = 0.0
        """Since the node's start, by the prices."""
        self.exceeded = 0.0
        """Spent beyond the budget, for requests that were not held back."""
        self._rate = share() / MONTH_SECONDS
        self._prices = prices
        self._other = other
        self._now = now
        self._counted = Requests(0, 0)
        self._at = now()
        self._left = self._rate * FIRST_SECONDS
        self._own = prices.put

    @property
    def per_month(self) -> float:
        """The present budget of a month."""
        return self._share()

    @property
    def _own_rate(self) -> float:
        return max(self._rate * OWN_SHARE, self._prices.put / LONGEST_PUT_SECONDS)

    @property
    def left(self) -> float:
        """Money that may be spent now; below 0, money that is owed."""
        self._settle()
        return self._left

    def seconds_to_next(self) -> float:
        """Seconds until a put may begin, if nothing else is requested meanwhile; 0 if one may now."""
        self._settle()
        price = self._prices.put
        if max(self._left, self._own) >= price * (1 - 1e-6):
            return 0.0
        return min((price - self._left) / self._rate, (price - self._own) / self._own_rate)

    def spend(self) -> None:
        """A put begins, which `other` does not count."""
        if self._left < self._prices.put * (1 - 1e-6):
            self._own -= self._prices.put
        self._pay(self._prices.put)

    def _settle(self) -> None:
        now, other = self._now(), self._other()
        passed = now - self._at
        earned = passed * self._rate
        self._at, self._rate = now, self._share() / MONTH_SECONDS
        self._left = min(self._left + earned, self._rate * BURST_SECONDS + self._prices.put)
        self._own = min(self._own + passed * self._own_rate, self._prices.put)
        puts, gets = max(other.puts, self._counted.puts), max(other.gets, self._counted.gets)
        cost = (puts - self._counted.puts) * self._prices.put + (gets - self._counted.gets) * self._prices.get
        self._counted = Requests(puts, gets)
        self._pay(cost)

    def _pay(self, cost: float) -> None:
        self.spent += cost
        self._left -= cost
        owed = -self._rate * BURST_SECONDS - self._left
        if owed > 0:
            self.exceeded += owed
            self._left += owed
