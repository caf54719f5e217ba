"""What is done about engines that sample otherwise than the learner would, and about rollouts of older policies."""

from __future__ import annotations

from agrpo.recipes import Asked, Tree, recipe


@recipe(
    "tis",
    kind="modifier",
    paper="Your Efficient RL Framework Secretly Brings You Off-Policy RL Training, fengyao.notion.site; arXiv:1606.02647",
)
def tis(_: Asked) -> Tree:
    """Truncated importance sampling: the weight of policy over sampler, of whole answers, cut at 2.

    Expected: 0.147333 with `token_truncate`, -0.432667 with `sequence_truncate`, on the terms of `dapo`.
    """
    return {"correction": {"mode": "sequence_truncate", "maximum": 2.0}}


@recipe(
    "mis",
    kind="modifier",
    paper="IcePop, arXiv:2510.18855; When Speed Kills Stability: Demystifying RL Collapse (2025)",
)
def mis(_: Asked) -> Tree:
    """Masked importance sampling: answers whose weight leaves a band have no policy term, and still count.

    Expected: 0.394000 with `token_mask`, 0.000000 with `sequence_mask`, on the terms of `dapo`.
    """
    return {"correction": {"mode": "sequence_mask", "minimum": 0.5, "maximum": 2.0}}


@recipe("seq-is", kind="modifier", paper="When Speed Kills Stability: Demystifying RL Collapse (2025)")
def seq_is(_: Asked) -> Tree:
    """Importance sampling of whole answers, which is unbiased; masked above 3.

    Expected: by enumeration of two tokens the gradient is -0.024 as it should be; that of weights by token is -0.048.
    """
    return {"correction": {"mode": "sequence_mask", "maximum": 3.0}}


@recipe(
    "v32-kl",
    kind="modifier",
    paper="DeepSeek-V3.2: Pushing the Frontier of Open Large Language Models, arXiv:2512.02556",
)
def v32_kl(_: Asked) -> Tree:
    """A penalty for leaving the reference whose gradient is that of the divergence.

    Deviations: the paper names no coefficient; this is DeepSeek-R1's.

    Expected: ratio 1.5 and a log-quotient of 0.5 give 0.223082.
    """
    return {"divergence": {"coefficient": 0.001, "unbiased": True}}


@recipe(
    "v32-mask",
    kind="modifier",
    paper="DeepSeek-V3.2: Pushing the Frontier of Open Large Language Models, arXiv:2512.02556",
)
def v32_mask(_: Asked) -> Tree:
    """Bad answers that the policy has already left far behind have no policy term.

    Raise the threshold where too much is masked (`off_policy_masked`); at 1 a token was on average e times likelier.

    Expected: mean log-quotient 0.563449 with advantage -1 is masked, -0.107946 is kept.
    """
    return {"masks": {"off_policy_threshold": 0.5}}


@recipe(
    "v32-sampling",
    kind="modifier",
    paper="DeepSeek-V3.2: Pushing the Frontier of Open Large Language Models, arXiv:2512.02556",
)
def v32_sampling(_: Asked) -> Tree:
    """Truncated sampling whose kept tokens the learner renormalises over.

    Expected: logits 2, 1, 0, -1 of which the first two are kept give log-probs -0.313262 and -1.313262.
    """
    return {"engine": {"top_p": 0.95, "top_k": 512}}


@recipe(
    "v32",
    kind="modifier",
    paper="DeepSeek-V3.2: Pushing the Frontier of Open Large Language Models, arXiv:2512.02556",
)
def v32(asked: Asked) -> Tree:
    """`v32-kl`, `v32-mask` and `v32-sampling` at once."""
    return {**v32_kl.settings(asked), **v32_mask.settings(asked), **v32_sampling.settings(asked)}


@recipe(
    "vespo",
    kind="base",
    paper="VESPO: Variational Sequence-Level Soft Policy Optimization for Stable Off-Policy LLM Training, arXiv:2602.10693",
)
def vespo(_: Asked) -> Tree:
    """A smooth weight of the whole answer's ratio, without a mean over its length, in place of any clip.

    Expected: weights 0.637762 and 1.240293, a loss of -0.750107 on the two fixture answers.
    """
    return {
        "loss": {"name": "vespo", "k_pos": 2.0, "lambda_pos": 3.0, "k_neg": 3.0, "lambda_neg": 2.0},
        "aggregation": {"name": "token_mean"},
        "correction": {"mode": "token_truncate"},
    }


@recipe(
    "score-centering",
    kind="base",
    paper="Score Centering Stabilizes Off-policy Reinforcement Learning, arXiv:2609.20807",
)
def score_centering(_: Asked) -> Tree:
    """Masked importance sampling from which the sampler's own expectation is subtracted. What agrpo does by default.

    Expected: the loss's gradient by logit -0.456000, 0.009600, 0.322400, 0.124000 where one token of four is masked.
    """
    return {
        "engine": {"num_sampler_logprobs": 8},
        "loss": {"name": "score_centering", "importance_min": 0.5, "importance_max": 5.0},
        "aggregation": {"name": "token_mean"},
    }
