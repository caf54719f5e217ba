"""Writes the sums of `tool.toml`, each behind three that were answered with a call of `calculate`.

    python -m examples.smollm2.sums                    into runs/start/smollm2-sums.jsonl

SmolLM2 is not told of tools by its chat template, and does not call one that it only has been told of. Shown three calls, it
copies them in some of its answers: that is where a run can begin.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from examples.smollm2.tool import calculate

PLACE = Path(__file__).parents[2] / "runs" / "start" / "smollm2-sums.jsonl"
"""Where the run file looks."""
SHOWN = ("12 + 34", "507 - 238", "64 + 881")
LOWEST, HIGHEST = 10, 999
NUM_ROWS = 1000


def rows(seed: int = 1) -> list[dict[str, Any]]:
    """Sums and differences of two numbers, none of them among those shown."""
    rng = random.Random(f"smollm2/{seed}")
    found: list[dict[str, Any]] = []
    while len(found) < NUM_ROWS:
        expression = f"{rng.randint(LOWEST, HIGHEST)} {rng.choice('+-')} {rng.randint(LOWEST, HIGHEST)}"
        if expression not in SHOWN:
            shown = [message for one in SHOWN for message in _answered(one)]
            found.append({"prompt": [*shown, _asked(expression)], "answer": str(calculate(expression))})
    return found


def write_rows(file: Path) -> None:
    """The dataset, as the prompt source `files` reads it."""
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows()))


def _asked(expression: str) -> dict[str, str]:
    return {"role": "user", "content": f"What is {expression}?"}


def _answered(expression: str) -> list[dict[str, str]]:
    call = json.dumps({"name": "calculate", "arguments": {"expression": expression}})
    result = str(calculate(expression))
    return [
        _asked(expression),
        {"role": "assistant", "content": f"<tool_call>\n{call}\n</tool_call>"},
        {"role": "tool", "content": result},
        {"role": "assistant", "content": result},
    ]


if __name__ == "__main__":
    PLACE.parent.mkdir(parents=True, exist_ok=True)
    write_rows(PLACE)
    print(f"{PLACE}: {NUM_ROWS} sums")
