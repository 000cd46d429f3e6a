"""Count usage against a budget."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import attrs

from hyperruntime.gateway.config.values import Budget

_MILLION = 1_000_000


@attrs.frozen(kw_only=True)
class Tokens:
    """The usage of an exchange.

    Attributes:
        input: input tokens, including cached ones.
        output: output tokens.
        estimated: whether the numbers are estimated from sizes in bytes, because the upstream's are
            missing or partial.
    """

    input: int = 0
    output: int = 0
    estimated: bool = False

    def __add__(self, other: Tokens) -> Tokens:
        """Return the sum of two usages; it is an estimate if one of them is."""
        return Tokens(
            input=self.input + other.input,
            output=self.output + other.output,
            estimated=self.estimated or other.estimated,
        )

    def cost(self, input_price: float, output_price: float) -> float:
        """Return the cost.

        Args:
            input_price: price of a million input tokens.
            output_price: price of a million output tokens.
        """
        return (self.input * input_price + self.output * output_price) / _MILLION


@attrs.frozen(kw_only=True)
class Spent:
    """Usage so far.

    Attributes:
        requests: number of requests sent on.
        input_tokens: input tokens of all requests.
        output_tokens: output tokens of all requests.
        money: cost of all requests by the prices of the model rules.
    """

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    money: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        """Return the sum of two usages."""
        return Spent(
            requests=self.requests + other.requests,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            money=self.money + other.money,
        )


def total_spent(parts: Iterable[Spent]) -> Spent:
    """Return the sum of several usages."""
    return sum(parts, Spent())


class Meter:
    """Counts the usage of a run or of seats. Thread-safe.

    Attributes:
        name: the owner of the budget, as messages name it.
        budget: the limits.
        spent: the usage so far.
    """

    def __init__(self, name: str, budget: Budget, spent: Spent | None = None) -> None:
        """Create a meter.

        Args:
            name: the owner of the budget, as messages name it.
            budget: the limits.
            spent: earlier usage to count from; None means zero.
        """
        self.name = name
        self.budget = budget
        self.spent = spent or Spent()
        self._lock = threading.Lock()

    @property
    def used_up(self) -> str:
        """The limit that is reached, as a sentence; "" while there is budget."""
        spent = self.spent
        budget = self.budget
        used = {
            "requests": (spent.requests, budget.requests),
            "tokens": (spent.input_tokens + spent.output_tokens, budget.tokens),
            "money": (spent.money, budget.money),
        }
        for unit, (amount, limit) in used.items():
            if limit is not None and amount >= limit:
                return f"the budget of {self.name} is used up: {amount:g} of {limit:g} {unit}"
        return ""

    def admit(self) -> str:
        """Count one request and return ""; if a limit is reached, return the reason instead."""
        with self._lock:
            if why := self.used_up:
                return why
            self.spent += Spent(requests=1)
            return ""

    def give_back(self) -> None:
        """Uncount a request that this meter admitted and another meter refused."""
        with self._lock:
            self.spent += Spent(requests=-1)

    def charge(self, tokens: Tokens, money: float) -> None:
        """Add the usage of an exchange.

        Args:
            tokens: its tokens.
            money: its cost.
        """
        with self._lock:
            self.spent += Spent(input_tokens=tokens.input, output_tokens=tokens.output, money=money)
