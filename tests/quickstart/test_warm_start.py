from __future__ import annotations

import hashlib
from itertools import islice

import pytest
import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from agrpo.quickstart.model import make_model
from agrpo.quickstart.question import Demonstration
from agrpo.quickstart.tasks import TASKS
from agrpo.quickstart.tasks.sorting import SORTING
from agrpo.quickstart.tasks.thinking import THINKING
from agrpo.quickstart.tokenizer import train_tokenizer
from agrpo.quickstart.warm_start import rate_share, warm_start


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    demonstrations = [shown for task in TASKS.values() for shown in islice(task.demonstrations(0), 300)]
    return train_tokenizer(text for shown in demonstrations for text in (shown.question.text, shown.completion))


def test_five_steps_lower_the_loss_and_repeat_bit_for_bit(tokenizer):
    first, second = (make_model(tokenizer, seed=3, has_positions=True) for _ in range(2))
    losses = [_losses(model, tokenizer, steps=5) for model in (first, second)]
    assert losses[0] == losses[1]
    assert losses[0][-1] < 0.9 * losses[0][0]
    assert _digest(first) == _digest(second)


def test_another_seed_gives_another_model(tokenizer):
    models = [make_model(tokenizer, seed=seed, has_positions=True) for seed in (3, 3, 4)]
    assert _digest(models[0]) == _digest(models[1]) != _digest(models[2])


def test_making_a_model_leaves_the_global_generator_alone(tokenizer):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    make_model(tokenizer, seed=3, has_positions=True)
    assert torch.rand(3).equal(expected)


def test_the_loss_is_the_weighted_mean_over_the_completions_tokens(tokenizer):
    question, other = (shown.question for shown in islice(THINKING.demonstrations(0), 2))
    shown = [
        Demonstration(question=question, completion="<think>1+2=3</think>3", first_token_weight=0.25),
        Demonstration(question=other, completion="7"),
    ]
    model = make_model(tokenizer, seed=3, has_positions=True)
    expected = [_token_losses(model, tokenizer, one) for one in shown]
    expected[0][0] *= 0.25
    # <think> 1 + 2 = 3 </think> 3 <|end|>, and 7 <|end|>; a batch of 64 holds each 32 times.
    assert [len(losses) for losses in expected] == [9, 2]
    (loss,) = _losses(model, tokenizer, steps=1, demonstrations=iter(shown * 32))
    assert loss == pytest.approx(float(torch.cat(expected).mean()), rel=1e-5)


def test_only_what_the_policy_says_is_learned_of_a_conversation_with_a_tool(tokenizer):
    question = next(THINKING.demonstrations(0)).question
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 4, "b": 5}}}
    between = ({"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "9"})
    schema = {"type": "function", "function": {"name": "add", "parameters": {"properties": {"a": {}, "b": {}}}}}
    shown = Demonstration(question=question, before=between, completion="9", schemas=(schema,), first_token_weight=0.25)
    model = make_model(tokenizer, seed=3, has_positions=True)
    said = ['<tool_call>{"name": "add", "arguments": {"a": 4, "b": 5}}</tool_call><|end|>', "9<|end|>"]
    context = [
        f"<|system|>add(a, b)\n<|end|><|user|>{question.text}<|end|><|assistant|>",
        "<|tool|>9<|end|><|assistant|>",
    ]
    ids, learned = [], []
    for other, own in zip(map(tokenizer.encode, context), map(tokenizer.encode, said), strict=True):
        learned += range(len(ids) + len(other), len(ids) + len(other) + len(own))
        ids += other + own
    with torch.no_grad():
        logprobs = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = torch.stack([-logprobs[place - 1, ids[place]] for place in learned])
    expected[0] *= 0.25
    (loss,) = _losses(model, tokenizer, steps=1, demonstrations=iter([shown] * 64))
    assert loss == pytest.approx(float(expected.mean()), rel=1e-5)


def test_without_positions_the_order_of_what_came_before_does_not_matter(tokenizer):
    model = make_model(tokenizer, seed=3, has_positions=False).eval()
    ids = torch.tensor([tokenizer.encode("1.0, 2.0, 3.0"), tokenizer.encode("2.0, 1.0, 3.0")])
    with torch.no_grad():
        # One layer sees a set; in two, what a token saw before it tells the order again.
        hidden = model.model(input_ids=ids, output_hidden_states=True).hidden_states[1][:, -1]
        other = make_model(tokenizer, seed=3, has_positions=True).eval()
        placed = other.model(input_ids=ids, output_hidden_states=True).hidden_states[1][:, -1]
    assert torch.allclose(hidden[0], hidden[1], atol=1e-4)
    assert not torch.allclose(placed[0], placed[1], atol=1e-2)


def test_the_rate_climbs_stays_and_falls():
    # 400 steps: 30 up, and from the 161st down over 240 to 3 %.
    assert [rate_share(step, 400) for step in (0, 14, 29, 160)] == [1 / 30, 0.5, 1.0, 1.0]
    assert rate_share(280, 400) == 0.5
    assert rate_share(399, 400) == 0.03


def test_every_step_is_told_and_the_threads_are_put_back(tokenizer):
    told: list[int] = []
    model = make_model(tokenizer, seed=3, has_positions=False)

    def on_step(step: int, loss: float) -> None:
        told.append(step)
        assert torch.get_num_threads() == 1

    torch.set_num_threads(2)
    warm_start(model, tokenizer, SORTING.demonstrations(0), steps=3, num_threads=1, on_step=on_step)
    assert told == [1, 2, 3]
    assert torch.get_num_threads() == 2


def _losses(model, tokenizer, *, steps: int, demonstrations=None) -> list[float]:
    losses: list[float] = []
    demonstrations = demonstrations or THINKING.demonstrations(3)
    warm_start(
        model, tokenizer, demonstrations, steps=steps, num_threads=1, on_step=lambda _, loss: losses.append(loss)
    )
    return losses


def _token_losses(model: Qwen3ForCausalLM, tokenizer, shown: Demonstration) -> torch.Tensor:
    prompt = tokenizer.apply_chat_template(shown.question.messages, add_generation_prompt=True, return_dict=False)
    completion = [*tokenizer.encode(shown.completion), tokenizer.eos_token_id]
    with torch.no_grad():
        logprobs = model(input_ids=torch.tensor([prompt + completion])).logits[0].log_softmax(-1)
    return torch.stack([-logprobs[len(prompt) + place - 1, token] for place, token in enumerate(completion)])


def _digest(model: Qwen3ForCausalLM) -> str:
    digest = hashlib.sha256()
    for name, weights in sorted(model.state_dict().items()):
        digest.update(name.encode() + weights.numpy().tobytes())
    return digest.hexdigest()
