"""The one tool of `tool.toml`: sums and differences, for a model that cannot do them in its head."""

from __future__ import annotations

import re

EXPRESSION = re.compile(r"\s*-?\s*\d{1,9}(\s*[-+]\s*\d{1,9})*\s*")
"""Whole numbers and signs: what a model made up is not to be trusted with `eval`."""
TERM = re.compile(r"[-+]?\d+")


def calculate(expression: str) -> int:
    """Calculate an arithmetic expression.

    Args:
        expression: Whole numbers with + and - between them, such as "12 + 34".

    Returns:
        The result.
    """
    if EXPRESSION.fullmatch(expression) is None:
        raise ValueError('expected whole numbers with + and - between them, such as "12 + 34"')
    return sum(map(int, TERM.findall("".join(expression.split()))))
