"""Count what is used, against a budget."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import attrs

from hyperruntime.gateway.config.values import Budget

_MILLION = 1_000_000


@attrs.frozen(kw_only=True)
class Tokens:
    """What an exchange used.

    Attributes:
        input: tokens read, cached ones too.
        output: tokens written.
        estimated: whether the upstream did not say, and it was guessed from the bytes.
    """

    input: int = 0
    output: int = 0
    estimated: bool = False

    def cost(self, input_price: float, output_price: float) -> float:
        """Return the money, at prices of a million tokens."""
        return (self.input * input_price + self.output * output_price) / _MILLION


@attrs.frozen(kw_only=True)
class Spent:
    """What was used so far.

    Attributes:
        requests: that were let through.
        input_tokens: of all of them.
        output_tokens: of all of them.
        money: by the prices of the model rules.
    """

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    money: float = 0.0


def total_spent(parts: Iterable[Spent]) -> Spent:
    """Return what several used together."""
    total = Spent()
    for part in parts:
        total = Spent(**{name: getattr(total, name) + getattr(part, name) for name in attrs.fields_dict(Spent)})
    return total


class Meter:
    """Counts what a run or a seat uses; safe to use from many threads.

    Attributes:
        name: whose budget it is, in a sentence.
        budget: the limit.
    """

    def __init__(self, name: str, budget: Budget, spent: Spent | None = None) -> None:
        """Count from what was spent before, or from zero."""
        self.name, self.budget = name, budget
        self._spent = spent or Spent()
        self._refused = ""
        self._lock = threading.Lock()

    @property
    def spent(self) -> Spent:
        """What was used so far."""
        return self._spent

    @property
    def used_up(self) -> str:
        """Which limit is reached, in a sentence; nothing while there is budget."""
        return self._exhausted()

    @property
    def refused(self) -> str:
        """Which limit a request was refused for, in a sentence; nothing while there was none."""
        return self._refused

    def admit(self) -> str:
        """Count one request, or return why it may not be made."""
        with self._lock:
            if why := self._exhausted():
                self._refused = why
                return why
            self._spent = attrs.evolve(self._spent, requests=self._spent.requests + 1)
            return ""

    def give_back(self) -> None:
        """Take back a request that was admitted here and refused elsewhere."""
        with self._lock:
            self._spent = attrs.evolve(self._spent, requests=self._spent.requests - 1)

    def charge(self, tokens: Tokens, money: float) -> None:
        """Count what an exchange used."""
        with self._lock:
            spent = self._spent
            self._spent = attrs.evolve(
                spent,
                input_tokens=spent.input_tokens + tokens.input,
                output_tokens=spent.output_tokens + tokens.output,
                money=spent.money + money,
            )

    def _exhausted(self) -> str:
        spent, budget = self._spent, self.budget
        used = {
            "requests": (spent.requests, budget.requests),
            "tokens": (spent.input_tokens + spent.output_tokens, budget.tokens),
            "money": (spent.money, budget.money),
        }
        for unit, (amount, limit) in used.items():
            if limit is not None and amount >= limit:
                return f"the budget of {self.name} is used up: {amount:g} of {limit:g} {unit}"
        return ""
