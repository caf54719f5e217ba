"""Update: what the optimizer step itself says. A step that trained nothing has no loss."""

from __future__ import annotations

from agrpo.metrics import StepFacts


def measure(facts: StepFacts) -> dict[str, float | None]:
    """The gradient norm is before clipping; the coefficient of the bonus for entropy before the step."""
    trained = not facts.plan.empty
    return {
        "learning_rate": facts.plan.learning_rate,
        "entropy_coef": facts.plan.entropy_coefficient,
        "policy_loss": facts.policy_loss if trained else None,
        "loss": facts.loss if trained else None,
        "grad_norm": facts.grad_norm if trained else None,
        "aux_loss": facts.aux_loss if trained else None,
    }
