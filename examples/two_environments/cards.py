"""Twenty-one: the policy draws cards while it dares, and is paid by how near it comes."""

from __future__ import annotations

import random

MOST = 21
CARDS = range(1, 11)


class TwentyOne:
    """One hand. Every rollout has one of its own, which `reset` begins anew."""

    def __init__(self) -> None:
        self.deck = random.Random(0)
        self.total = 0

    def reset(self, number: int) -> str:
        """Shuffle by the row's number, so that all rollouts of a group draw the same cards."""
        self.deck = random.Random(number)
        self.total = 0
        return f"Draw cards to come near {MOST} and not above. Stop when you like."

    def draw(self) -> str:
        """Draw a card.

        Returns:
            The card, and the sum of all that were drawn.
        """
        card = self.deck.choice(CARDS)
        self.total += card
        return (
            f"A {card}. You have {self.total}." if self.total <= MOST else f"A {card}. You have {self.total}, too many."
        )

    def get_reward(self) -> float:
        """The share of 21 that was reached; nothing above it."""
        return self.total / MOST if self.total <= MOST else 0.0
