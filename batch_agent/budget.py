"""What a whole batch may use: tokens and time."""

from __future__ import annotations

from batch_agent.errors import BudgetError
from batch_agent.results import Usage


class Budget:
    def __init__(self, tokens: int | None, ends_at: float | None) -> None:
        self._tokens = tokens
        self._spent = Usage()
        self.ends_at = ends_at
        """On the clock of the event loop."""

    def check(self) -> None:
        """Before a model call. Raises BudgetError."""
        if self._tokens is not None and self._spent.total_tokens >= self._tokens:
            raise BudgetError(f"the batch has used its budget of {self._tokens} tokens")

    def spend(self, usage: Usage) -> None:
        if self._tokens is not None:
            self._spent += usage
