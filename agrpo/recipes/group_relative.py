"""GRPO and what only changes its ratio, its mean or its group."""

from __future__ import annotations

from agrpo.recipes import OPEN_BAND, Asked, Tree, recipe


@recipe(
    "grpo",
    kind="base",
    paper="DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models, arXiv:2402.03300",
)
def grpo(_: Asked) -> Tree:
    """Clipped token ratios, the mean of each answer, a group-standardised advantage, a penalty for leaving the reference.

    The paper gives no such values; they are those of DeepSeek-R1: 8,192 answers are sampled at a time and trained in 16 steps
    of 512. With `epsilon = 10` nothing is clipped from below, and nearly nothing from above.

    Deviations: a rollout's ratio is that of the policy to the sampler, whose weights may be older by `async.max_staleness`.

    Expected: advantages of the rewards 1, 0, 0, 1 are 0.865875, -0.865875, -0.865875, 0.865875.
    """
    return {
        "engine": {"num_generations": 16, "max_completion_length": 32768},
        "step": {"groups": 32, "micro_tokens": 36864},
        "async": {"weight_sync_steps": 16},
        "loss": {"name": "clip", "epsilon": 10.0, **OPEN_BAND},
        "aggregation": {"name": "sequence_mean"},
        "divergence": {"coefficient": 0.001},
    }


@recipe(
    "bnpo",
    kind="base",
    paper="BNPO: Beta Normalization Policy Optimization, arXiv:2506.02864 (its aggregation alone)",
)
def bnpo(_: Asked) -> Tree:
    """GRPO's objective, summed over the tokens of a batch and divided by their number.

    Deviations: the reference divides by the tokens of a micro-batch; here it is the whole step, so that no split into rows
    changes anything. It is then the aggregation of `dapo`.
    """
    return {
        "loss": {"name": "clip", "epsilon": 0.2, **OPEN_BAND},
        "aggregation": {"name": "token_mean"},
    }


@recipe(
    "r1-rl",
    kind="base",
    paper="DeepSeek-R1: Incentivizing Reasoning Capability in LLMs via Reinforcement Learning, arXiv:2501.12948",
)
def r1_rl(_: Asked) -> Tree:
    """DeepSeek-R1's reinforcement learning of reasoning, with the values of Open-R1's recipe for a 7B model.

    Deviations: this stage alone; fine-tuning before and after it, and rejection sampling, are no recipes. Give the rewards
    `accuracy`, `think_format` and one for the language in the run's file.
    """
    return {
        "engine": {"num_generations": 16, "max_completion_length": 32768},
        "step": {"micro_tokens": 36864},
        "optimizer": {"learning_rate": 4e-5},
        "loss": {"name": "clip", "epsilon": 0.2, **OPEN_BAND},
        "aggregation": {"name": "sequence_mean"},
        "divergence": {"coefficient": 0.001},
    }


@recipe("gspo", kind="base", paper="Group Sequence Policy Optimization, arXiv:2507.18071")
def gspo(_: Asked) -> Tree:
    """Ratio and clip of whole answers: the geometric mean of their tokens' ratios.

    Deviations: it acts where rollouts are off policy; four steps are trained between two publishes, as in the paper, and
    staleness adds to that.

    Expected: ratios 1.161895 and 1.113987, a loss of 0.056794 on the two fixture answers.
    """
    return {
        "async": {"weight_sync_steps": 4},
        "loss": {"name": "clip", "level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4, **OPEN_BAND},
        "aggregation": {"name": "sequence_mean"},
    }


@recipe("gmpo", kind="base", paper="Geometric-Mean Policy Optimization, arXiv:2507.20673")
def gmpo(_: Asked) -> Tree:
    """The geometric mean of an answer's ratios, each clipped on one side before it.

    `epsilon` is a width in nats: ratios from 0.670 to 1.492.

    Expected: geometric means 1.158724 and 1.113987, a loss of -0.022369 on the two fixture answers.
    """
    return {
        "loss": {"name": "gmpo", "epsilon": 0.4},
        "aggregation": {"name": "sequence_mean"},
    }


@recipe("2-grpo", kind="base", paper="It Takes Two: Your GRPO Is Secretly DPO, arXiv:2510.00977")
def two_grpo(_: Asked) -> Tree:
    """GRPO with groups of two: every group that teaches is one pair of a better and a worse answer.

    Of pass rate p a share of 2p(1 - p) of the groups is such a pair; in asynchronous runs others take the place of the rest.

    Expected: advantages of the rewards 1, 0 are 0.707007 and -0.707007; a loss of 0.061863 on the two fixture answers.
    """
    return {
        "engine": {"num_generations": 2},
        "loss": {"name": "clip", "epsilon": 0.2, **OPEN_BAND},
        "aggregation": {"name": "sequence_mean"},
    }
