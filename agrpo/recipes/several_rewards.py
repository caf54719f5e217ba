"""Rewards beside the task's own, and how several become one advantage."""

from __future__ import annotations

from agrpo.recipes import Asked, Tree, fitting_length, recipe


@recipe(
    "long-cot-rewards",
    kind="modifier",
    paper="Demystifying Long Chain-of-Thought Reasoning in LLMs, arXiv:2502.03373",
)
def long_cot_rewards(asked: Asked) -> Tree:
    """A reward that falls with the length of right answers and rises with that of wrong ones, and one against repetition.

    Deviations: its length is `engine.max_completion_length` where the run's file sets that; the paper's is 4,096.

    Expected: a right answer of 1,024 tokens that repeats itself as the fixture does is worth 0.355348.
    """
    return {
        "rewards": [
            {"name": "cosine_scaled", "max_len": fitting_length(asked, 4096)},
            {"name": "repetition_penalty", "ngram_size": 3, "max_penalty": -1.0},
        ]
    }


@recipe(
    "gdpo",
    kind="modifier",
    paper="GDPO: Group reward-Decoupled Normalization Policy Optimization for Multi-reward RL Optimization, arXiv:2601.05242",
)
def gdpo(_: Asked) -> Tree:
    """Each reward is standardised in its group before they are weighed and summed, and the sum over the batch.

    Inert with one reward. A reward that says nothing is left out for itself alone.

    Expected: of two groups the advantages 0.547680 and 1.095360, which a sum of rewards would not tell apart.
    """
    return {"advantage": {"name": "gdpo"}}
