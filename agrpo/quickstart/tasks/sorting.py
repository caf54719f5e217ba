"""Sorting: demonstrations with two to five numbers, a run on six to twelve, held-out lists up to fifteen.

The policy has no positions, so its way of sorting can reach lists it never saw; the run makes it hold there.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

from agrpo.quickstart.question import Demonstration, Part, Question, Task

WARM_START_LENGTHS = range(2, 6)
TRAINING_LENGTHS = range(6, 13)
HELD_OUT_LENGTHS = range(5, 16)
"""From the longest that the warm start shows, to see that it is not forgotten, to three beyond the run's longest."""

VALUES = range(0, 60, 2)
"""What lists hold, each at most once. Even, because number_sorting's scorer lets every number of an answer be off by
one: from neighbouring values a policy soon learns to repeat one in place of the next, which is rewarded and wrong."""
TRAINING_PER_LENGTH = 1200
HELD_OUT_PER_LENGTH = 100
MOST_NUMBERS = max(HELD_OUT_LENGTHS)


def demonstrations(seed: int) -> Iterator[Demonstration]:
    """Short lists and their sorted form, without end."""
    rng = random.Random(f"sorting/demonstrations/{seed}")
    while True:
        question = _draw(rng, rng.choice(WARM_START_LENGTHS))
        if question.part is Part.WARM_START:
            yield Demonstration(question=question, completion=question.answer)


def training(seed: int) -> list[Question]:
    """As many lists of each length, no two with the same numbers."""
    return distinct(f"sorting/training/{seed}", Part.TRAINING, TRAINING_LENGTHS, TRAINING_PER_LENGTH)


def held_out() -> list[Question]:
    """As many lists of each length, no two with the same numbers."""
    return distinct("sorting/held out", Part.HELD_OUT, HELD_OUT_LENGTHS, HELD_OUT_PER_LENGTH)


def distinct(seed: str, part: Part, lengths: Iterable[int], per_length: int) -> list[Question]:
    """Questions of `part`, no two with the same content, `per_length` of each length."""
    rng = random.Random(seed)
    found: dict[str, Question] = {}
    for length in lengths:
        wanted = len(found) + per_length
        while len(found) < wanted:
            question = _draw(rng, length)
            if question.part is part:
                found.setdefault(question.content, question)
    return list(found.values())


def question_of(numbers: Sequence[int], direction: str) -> Question:
    """The question to sort `numbers`, `ascending` or `descending`."""
    ordered = [f"{number}.0" for number in sorted(numbers, reverse=direction == "descending")]
    original = [f"{number}.0" for number in numbers]
    return Question(
        # Only the first line of number_sorting's question: its note on the format is 400 characters.
        text=f"Sort these numbers in {direction} order: {', '.join(original)}",
        answer=str(ordered),
        # Content ignores order and direction, so that a held-out set of numbers is never trained in any guise.
        content=" ".join(map(str, sorted(numbers))),
        difficulty=len(numbers),
        metadata={
            "source_dataset": "number_sorting",
            "original_numbers": original,
            "direction": direction,
            "sorted_numbers": ordered,
            "numbers": len(numbers),
        },
    )


def _draw(rng: random.Random, length: int) -> Question:
    return question_of(rng.sample(VALUES, length), rng.choice(("ascending", "descending")))


SORTING = Task(
    name="sorting",
    about="sorting numbers: shown lists of 2 to 5, trained on 6 to 12, asked for up to 15",
    dataset="number_sorting",
    demonstrations=demonstrations,
    training=training,
    held_out=held_out,
    has_positions=False,
    warm_start_steps=400,
    # A list of n numbers is answered in 2n + 2 tokens.
    max_completion_length=2 * MOST_NUMBERS + 4,
    max_steps=250,
    learning_rate=3e-4,
    betas=(0.9, 0.999),
    warmup_steps=10,
)
