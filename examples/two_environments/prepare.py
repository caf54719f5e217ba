"""Makes a tiny model that plays two games badly, and the rows that name a game each. Two to six minutes.

    python -m examples.two_environments.prepare             into runs/start/two_environments
    python -m examples.two_environments.prepare --seed 2 --to runs/start/two_environments-2

The warm start watches a careless player: half of its guesses forget what it was told, and it stops drawing cards by chance.
The run is there to change that.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from agrpo.environments.factories import kind_at
from agrpo.quickstart.question import Demonstration, Part, Question, part_of
from agrpo.records.prompt import Message
from agrpo.tools import schemas_of
from examples.guess.game import HIGHEST, LOWEST, MOST_GUESSES, GuessNumber
from examples.start import Start, command
from examples.two_environments.cards import MOST, TwentyOne

NUM_ROWS = 4000
GUESS_SCHEMAS, CARDS_SCHEMAS = (
    tuple(schemas_of(kind_at(f"{cls.__module__}:{cls.__name__}").tools)) for cls in (GuessNumber, TwentyOne)
)
SHARE_CARELESS = 0.5
"""Of the guesses."""
SHARE_GIVEN_UP, SHARE_STOPPED = 0.15, 0.35
"""Of the moments at which the player could go on guessing, or drawing."""


def demonstrations(seed: int) -> Iterator[Demonstration]:
    """Games of both kinds, without end."""
    rng = random.Random(f"two environments/demonstrations/{seed}")
    while True:
        number = _number(rng, Part.WARM_START)
        yield guessed(number, rng) if rng.random() < 0.5 else drawn(number, rng)


def rows(seed: int) -> list[dict[str, Any]]:
    """As many of each game. `reset` takes the number, and says what is asked."""
    rng = random.Random(f"two environments/rows/{seed}")
    return [
        {"environment": name, "number": _number(rng, Part.TRAINING)} for name in ["guess", "cards"] * (NUM_ROWS // 2)
    ]


def guessed(number: int, rng: random.Random) -> Demonstration:
    """A game of guessing that ends when the number is found, when the guesses are used up, or when the player gives up."""
    game = GuessNumber()
    asked = game.reset(number)
    said: list[Message] = []
    lowest, highest, value = LOWEST, HIGHEST, LOWEST
    for _ in range(MOST_GUESSES):
        careless = rng.random() < SHARE_CARELESS
        value = rng.randint(LOWEST, HIGHEST) if careless else rng.randint(lowest, highest)
        told = game.guess(value)
        said += _call("guess", {"value": value}, told)
        lowest, highest = (
            max(lowest, value + 1 if "higher" in told else 0),
            min(highest, value - 1 if "lower" in told else HIGHEST),
        )
        if value == game.target or rng.random() < SHARE_GIVEN_UP:
            break
    return Demonstration(
        question=_asked(asked, number), before=tuple(said), completion=str(value), schemas=GUESS_SCHEMAS
    )


def drawn(number: int, rng: random.Random) -> Demonstration:
    """A hand that ends by chance, whatever was drawn."""
    hand = TwentyOne()
    asked = hand.reset(number)
    said: list[Message] = []
    while hand.total <= MOST and rng.random() > SHARE_STOPPED:
        said += _call("draw", {}, hand.draw())
    return Demonstration(question=_asked(asked, number), before=tuple(said), completion="Stop.", schemas=CARDS_SCHEMAS)


def _call(name: str, arguments: dict[str, Any], told: str) -> list[Message]:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": told}]


def _asked(text: str, number: int) -> Question:
    return Question(text=text, answer="", content=str(number), difficulty=1, metadata={})


def _number(rng: random.Random, part: Part) -> int:
    """Of a game that belongs to `part`: none of the run's is shown."""
    while part_of(str(number := rng.randrange(10**6))) is not part:
        pass
    return number


START = Start(name="two_environments", demonstrations=demonstrations, rows=rows, steps=150)

if __name__ == "__main__":
    command(START, __doc__)
