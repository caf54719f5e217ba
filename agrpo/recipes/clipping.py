"""Other clips and gates, other sums, masks and bonuses."""

from __future__ import annotations

from agrpo.recipes import OPEN_BAND, Asked, Tree, fitting_length, recipe


@recipe("dapo", kind="base", paper="DAPO: An Open-Source LLM Reinforcement Learning System at Scale, arXiv:2503.14476")
def dapo(asked: Asked) -> Tree:
    """A higher upper clip, a mean over tokens, cut answers left out and punished, and groups of equal rewards replaced.

    Deviations: with one reward in the run's file, that reward alone decides which groups are replaced, so that the
    punishment of length cannot keep a group whose answers are all right; with several, name it in `step.zero_variance_reward`.
    The punishment ends at `engine.max_completion_length` where the run's file sets that, and begins a fifth below it.

    Expected: a loss of 0.453333 on the two fixture answers.
    """
    longest = fitting_length(asked, 20480)
    step: Tree = {"groups": 32, "micro_tokens": 24576, "mask_truncated": True, "zero_variance": "refill"}
    if len(asked.rewards) == 1:
        step["zero_variance_reward"] = asked.rewards[0]
    return {
        "engine": {"num_generations": 16, "max_completion_length": 20480},
        "step": step,
        "loss": {"name": "clip", "epsilon": 0.2, "epsilon_high": 0.28, **OPEN_BAND},
        "aggregation": {"name": "token_mean"},
        "rewards": [
            {
                "name": "soft_overlong_punishment",
                "max_completion_len": longest,
                "soft_punish_cache": max(1, longest // 5),
            }
        ],
    }


@recipe(
    "intellect-2",
    kind="base",
    paper="INTELLECT-2: A Reasoning Model Trained Through Globally Decentralized Reinforcement Learning, arXiv:2505.07291",
)
def intellect_2(_: Asked) -> Tree:
    """A bound on the ratio for both signs, so that a negative advantage cannot make a loss without end.

    Expected: ratio 5 with advantage -1 loses 4, and 5 without the bound; ratio 3 loses 3.
    """
    return {
        "engine": {"num_generations": 16},
        "optimizer": {"learning_rate": 3e-7},
        "loss": {"name": "clip", "epsilon": 0.2, "delta": 4.0, **OPEN_BAND},
        "aggregation": {"name": "token_mean"},
        "divergence": {"coefficient": 0.001},
    }


@recipe("skywork-or1", kind="modifier", paper="Skywork Open Reasoner 1 Technical Report, arXiv:2505.22312")
def skywork_or1(_: Asked) -> Tree:
    """A bonus for entropy that grows while the entropy is below a target, and is given only then.

    The target belongs to the model: set it near what `entropy` says at the start of a run. 5 nats are far above what most
    begin with, so that the bonus grows in every step.

    Expected: at entropies 4, 5, 6 the coefficients 0.01, 0.015, 0 are applied.
    """
    return {"entropy": {"coefficient": 0.01, "adaptive": True, "target": 5.0, "delta": 0.005}}


@recipe(
    "80-20",
    kind="modifier",
    needs=("dapo",),
    paper="Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective RL for LLM Reasoning, arXiv:2506.01939",
)
def eighty_twenty(_: Asked) -> Tree:
    """Only the fifth of the tokens with the highest entropy have a policy term; all still count in the denominator.

    Deviations: the fifth is taken over the whole step, not over a micro-batch.

    Expected: a loss of -0.030000 on the two fixture answers.
    """
    return {"masks": {"top_entropy": 0.2}}


@recipe("dr-grpo", kind="base", paper="Understanding R1-Zero-Like Training: A Critical Perspective, arXiv:2503.20783")
def dr_grpo(_: Asked) -> Tree:
    """No division by the group's deviation, and a constant denominator: neither easy prompts nor short answers weigh more.

    Expected: advantages of the rewards 1, 0, 0, 1 are 0.5 and -0.5; a loss of 0.140000 on the two fixture answers.
    """
    return {
        "engine": {"num_generations": 8, "max_completion_length": 3000},
        "advantage": {"name": "grpo", "scale": "none"},
        "loss": {"name": "clip", "epsilon": 0.2, **OPEN_BAND},
        "aggregation": {"name": "constant"},
    }


@recipe(
    "lite-ppo", kind="base", paper="Part I: Tricks or Traps? A Deep Dive into RL for LLM Reasoning, arXiv:2508.08221"
)
def lite_ppo(_: Asked) -> Tree:
    """Plain clipping with two choices: the deviation of the whole batch, and a mean over its tokens.

    1,024 answers are sampled at a time and trained in eight steps of 128.

    Expected: of the rewards 1, 0, 0, 1 and 1, 1, 1, 0 the advantages 0.965905 and 0.482953, with a deviation of 0.517549.
    """
    return {
        "engine": {"num_generations": 8, "temperature": 0.99, "top_p": 0.99, "top_k": 100},
        "step": {"groups": 16},
        "async": {"weight_sync_steps": 8},
        "advantage": {"name": "grpo", "scale": "batch"},
        "loss": {"name": "clip", "epsilon": 0.2, **OPEN_BAND},
        "aggregation": {"name": "token_mean"},
    }


@recipe("scalerl", kind="base", paper="The Art of Scaling Reinforcement Learning Compute for LLMs, arXiv:2510.13786")
def scalerl(_: Asked) -> Tree:
    """CISPO: the importance weight is cut, the gradient never, at a staleness of up to eight updates.

    Deviations: a mean over tokens, not over prompts; the head is computed in the type of the weights, its logits in float32;
    prompts that are nearly always answered right are not left out by themselves (`filter_prompt`).

    Expected: a loss of -0.731667 on the two fixture answers.
    """
    return {
        "engine": {"num_generations": 16},
        "async": {"max_staleness": 8},
        "step": {"zero_variance": "refill"},
        "advantage": {"name": "grpo", "scale": "batch"},
        "loss": {"name": "cispo", "epsilon_high": 5.0},
        "aggregation": {"name": "token_mean"},
    }


@recipe("sapo", kind="base", paper="Soft Adaptive Policy Optimization, arXiv:2511.20347")
def sapo(_: Asked) -> Tree:
    """A smooth gate where others clip, a little narrower for negative advantages.

    Expected: a loss of -0.055149 on the two fixture answers.
    """
    return {
        "loss": {"name": "sapo", "temperature_pos": 1.0, "temperature_neg": 1.05},
        "aggregation": {"name": "sequence_mean"},
    }


@recipe("luspo", kind="base", paper="Length-Unbiased Sequence Policy Optimization, arXiv:2602.05261")
def luspo(_: Asked) -> Tree:
    """GSPO's loss times the length of the answer, so that long answers are not put at a disadvantage.

    The loss grows with the length, and so does the gradient's norm.

    Expected: a loss of 1.225474 on the two fixture answers.
    """
    return {
        "loss": {"name": "clip", "level": "sequence", "epsilon": 2e-3, "epsilon_high": 2.5e-3, **OPEN_BAND},
        "aggregation": {"name": "sequence_sum"},
    }
