"""Forward and backward of TRL's GRPOTrainer on given completions: run by the interpreter that has TRL, which has no agrpo.

    PYTHON -m stand.trl_learner '{"model": …, "batch": FILE, …}'

Its own `compute_loss` and `accelerator.backward`, with nothing generated and no optimizer. Each line on standard input
asks for one turn; each is answered by one line of JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from stand.trl_steps import make_trainer


def main() -> None:
    settings = json.loads(sys.argv[1])
    import torch

    torch.set_num_threads(settings["threads"])
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer({**settings, "steps": 1}, folder)
        trainer.current_gradient_accumulation_steps = 1
        trainer.model.train()
        inputs = inputs_of(json.loads(Path(settings["batch"]).read_text()))
        told = keep_logprobs(trainer)
        print(json.dumps({"ready": True}), flush=True)
        for _ in sys.stdin:
            print(json.dumps(turn(trainer, dict(inputs), told)), flush=True)


def inputs_of(batch: dict[str, Any]) -> dict[str, Any]:
    """What the trainer's own generation would have handed to its loss."""
    import torch

    prompts, completions = torch.tensor(batch["prompt_ids"]), torch.tensor(batch["completion_ids"])
    return {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": completions,
        "completion_mask": torch.ones_like(completions),
        "old_per_token_logps": torch.tensor(batch["sampler_logprobs"]),
        "advantages": torch.tensor(batch["advantages"]),
        "num_items_in_batch": torch.tensor(float(completions.numel())),
    }


def keep_logprobs(trainer: Any) -> dict[str, Any]:
    """Where the trainer's log-probs of its last turn are found, under `logprobs`."""
    told: dict[str, Any] = {}
    compute = trainer._get_per_token_logps_and_entropies

    def kept(*given: Any, **named: Any) -> Any:
        found = compute(*given, **named)
        told["logprobs"] = found[0].detach()
        return found

    trainer._get_per_token_logps_and_entropies = kept
    return told


def turn(trainer: Any, inputs: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    import torch

    cpu, wall = time.process_time(), time.perf_counter()
    loss = trainer.compute_loss(trainer.model, inputs)
    trainer.accelerator.backward(loss)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    norm = torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), float("inf"))
    trainer.model.zero_grad(set_to_none=True)
    return {
        "cpu_seconds": cpu,
        "seconds": wall,
        "loss": float(loss.detach()),
        "grad_norm": float(norm),
        "logprobs": told["logprobs"].float().flatten().tolist(),
    }


if __name__ == "__main__":
    main()
