"""Thinking: sums of three digits. The warm start can work them out or answer at once; the run learns that working pays.

The rate of right answers at the start is our choice, through `SHARE_STARTED_THINKING`: most of what the run learns is
to prefer a way of answering that the warm start already knows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from itertools import product

from agrpo.quickstart.question import Demonstration, Part, Question, Task

SHARE_WORKED = 0.85
"""Of the demonstrations, those that show the working."""
SHARE_STARTED_THINKING = 0.25
"""How often the warm start shall begin to think, far below how often it is shown thinking."""

_ODDS = SHARE_STARTED_THINKING / (1 - SHARE_STARTED_THINKING)
FIRST_TOKEN_WEIGHT = _ODDS * (1 - SHARE_WORKED) / SHARE_WORKED


def worked(question: Question) -> str:
    """The answer after its working: `<think>4+5=9;9-2=7</think>7`."""
    first, *rest = question.metadata["expression"].split()
    total, lines = int(first), []
    for sign, number in zip(rest[::2], rest[1::2], strict=True):
        result = total + int(sign + number)
        lines.append(f"{total}{sign}{number}={result}")
        total = result
    return f"<think>{';'.join(lines)}</think>{total}"


def demonstrations(seed: int) -> Iterator[Demonstration]:
    """Worked and bare answers in random order, without end."""
    rng = random.Random(f"thinking/{seed}")
    questions = questions_of(Part.WARM_START)
    while True:
        question = rng.choice(questions)
        if rng.random() < SHARE_WORKED:
            yield Demonstration(question=question, completion=worked(question), first_token_weight=FIRST_TOKEN_WEIGHT)
        else:
            yield Demonstration(question=question, completion=question.answer)


def questions_of(part: Part) -> list[Question]:
    """The questions that belong to `part`."""
    return [question for question in all_questions() if question.part is part]


@cache
def all_questions() -> list[Question]:
    """All 4,000."""
    return [_question(*terms) for terms in product(range(10), "+-", range(10), "+-", range(10))]


def _question(first: int, sign: str, second: int, other_sign: str, third: int) -> Question:
    expression = f"{first} {sign} {second} {other_sign} {third}"
    signed = [first, int(f"{sign}{second}"), int(f"{other_sign}{third}")]
    # Content ignores the order of the terms, so that "4 + 5 - 2" held out keeps "5 - 2 + 4" out of training too.
    terms = sorted([f"+{first}", f"{sign}{second}", f"{other_sign}{third}"])
    return Question(
        text=f"State the final answer to the following arithmetic problem: {expression} =",
        answer=str(sum(signed)),
        content=" ".join(terms),
        difficulty=3,
        metadata={"source_dataset": "chain_sum", "expression": expression, "num_terms": 3, "num_digits": 1},
    )


THINKING = Task(
    name="thinking",
    about="sums of three digits: the policy can think or answer at once, and learns that thinking pays",
    dataset="chain_sum",
    demonstrations=demonstrations,
    training=lambda seed: questions_of(Part.TRAINING),
    held_out=lambda: questions_of(Part.HELD_OUT),
    has_positions=True,
    warm_start_steps=500,
    max_completion_length=20,
    max_steps=60,
    learning_rate=5e-4,
    betas=(0.9, 0.99),
    warmup_steps=5,
)
