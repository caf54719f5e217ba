"""Steps of TRL's GRPOTrainer, timed: run by the interpreter that has TRL, which has no agrpo.

    PYTHON -m stand.trl_steps '{"model": …, "prompts": …, "steps": 4, …}'

Prints one line of JSON for each step, from the end of the step before to its own.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stand.words import distinct_words

TIMED = ("_generate_single_turn", "_compute_loss")
"""Methods of the trainer whose seconds are told, beside the accelerator's `backward`."""


def main() -> None:
    settings = json.loads(sys.argv[1])
    import torch

    torch.set_num_threads(settings["threads"])
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(settings, folder)
        trainer.train()


def make_trainer(settings: dict[str, Any], folder: str) -> Any:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    rows = [json.loads(line) for line in Path(settings["prompts"]).read_text().splitlines()]
    groups, size = settings["groups"], settings["num_generations"]
    arguments = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=groups * size,
        gradient_accumulation_steps=1,
        num_generations=size,
        max_completion_length=settings["completion_tokens"],
        max_steps=settings["steps"],
        learning_rate=settings["learning_rate"],
        lr_scheduler_type="constant",
        temperature=1.0,
        beta=0.0,
        epsilon=0.2,
        loss_type="dapo",
        mask_truncated_completions=False,
        bf16=settings["dtype"] == "bfloat16",
        use_cpu=True,
        gradient_checkpointing=False,
        save_strategy="no",
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
    )
    model = AutoModelForCausalLM.from_pretrained(settings["model"], dtype=getattr(torch, settings["dtype"]))
    clock = Clock()

    class Teller(TrainerCallback):
        """Says what a step took, and how many tokens it trained."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            clock.step()

        def on_log(self, _: Any, state: Any, __: Any, logs: dict[str, float], **___: Any) -> None:
            if "completions/mean_length" in logs:
                trained = logs["completions/mean_length"] * groups * size
                print(json.dumps({"step": state.global_step, "trained": trained, **clock.step()}), flush=True)

    trainer = GRPOTrainer(
        model=model,
        reward_funcs=distinct_words,
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(settings["model"]),
        callbacks=[Teller()],
    )
    for name in TIMED:
        setattr(trainer, name, clock.timed(name, getattr(trainer, name)))
    trainer.accelerator.backward = clock.timed("backward", trainer.accelerator.backward)
    return trainer


class Clock:
    """Wall and CPU seconds of a step, and of the methods that it is told to time."""

    def __init__(self) -> None:
        self.began = (time.perf_counter(), time.process_time())
        self.parts: dict[str, float] = {}

    def step(self) -> dict[str, Any]:
        """What passed since it was asked last."""
        now = (time.perf_counter(), time.process_time())
        told = {"seconds": now[0] - self.began[0], "cpu_seconds": now[1] - self.began[1], "parts": self.parts}
        self.began, self.parts = now, {}
        return told

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timing(*given: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*given, **named)
            finally:
                self.parts[name] = self.parts.get(name, 0.0) + time.perf_counter() - began

        return timing


if __name__ == "__main__":
    main()
