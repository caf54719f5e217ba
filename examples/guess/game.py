"""Guess a number: the policy asks with a tool, is told higher or lower, and is paid for finding it in few guesses."""

from __future__ import annotations

import random

LOWEST, HIGHEST = 1, 20
MOST_GUESSES = 6


class GuessNumber:
    """One game. Every rollout has one of its own, which `reset` begins anew."""

    def __init__(self) -> None:
        self.target = 0
        self.guesses: list[int] = []

    def reset(self, number: int) -> str:
        """Draw the number to be found from the row's, so that all rollouts of a group look for the same one."""
        self.target = random.Random(number).randint(LOWEST, HIGHEST)
        self.guesses = []
        return (
            f"I think of a number from {LOWEST} to {HIGHEST}. Call guess to find it; you have {MOST_GUESSES} guesses. When you "
            "know it, say it."
        )

    def guess(self, value: int) -> str:
        """Guess the number.

        Args:
            value: The guess.

        Returns:
            Whether the number is higher, lower, or found.
        """
        if len(self.guesses) == MOST_GUESSES:
            raise RuntimeError("there are no guesses left")
        self.guesses.append(value)
        if value == self.target:
            return "That is it."
        return "It is higher." if value < self.target else "It is lower."

    def get_reward(self) -> float:
        """1 for the first guess, less for every further one; a tenth for having guessed in vain, nothing for not guessing."""
        if self.target in self.guesses:
            return 1.0 - self.guesses.index(self.target) / (MOST_GUESSES + 1)
        return 0.1 if self.guesses else 0.0
