"""What every test runs under: no network, no telemetry, one thread, a Prefect home of its own, and a tiny model."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PREFECT_HOME = tempfile.mkdtemp(prefix="agrpo-prefect-")

# Set before any test module is imported: torch, transformers and prefect read these once.
os.environ |= {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PREFECT_HOME": PREFECT_HOME,
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "TOKENIZERS_PARALLELISM": "false",
}

SPECIAL_TOKENS = [
    "<|pad|>",
    "<|end|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
]

# Append-only: the rendering of turns 1..k is a prefix of the rendering of turns 1..k+1.
CHAT_TEMPLATE = (
    "{%- if tools %}<|system|>{% for tool in tools %}{{ (tool.function if tool.function is defined else tool)|tojson }}\n"
    "{% endfor %}<|end|>{% endif -%}"
    "{%- for message in messages -%}"
    "{{ '<|' + message['role'] + '|>' }}{{ message['content'] or '' }}"
    "{%- for call in (message['tool_calls'] or []) -%}"
    "{%- set called = call['function'] if call['function'] is defined else call -%}"
    "<tool_call>{{ {'name': called['name'], 'arguments': called['arguments']}|tojson }}</tool_call>"
    "{%- endfor -%}<|end|>"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)

CORPUS = ["State the final answer to the following arithmetic problem: 4 + 5 - 2 =", "4+5=9;9-2=7", "hello there"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the README, which takes longest, so that the other workers do everything else meanwhile."""
    items.sort(key=lambda item: item.path.name != "test_readme.py")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run whose every test was skipped: it has shown nothing."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.exitstatus != pytest.ExitCode.OK or reporter is None or session.config.option.collectonly:
        return
    if not any(reporter.stats.get(outcome) for outcome in ("passed", "xfailed")):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_unconfigure() -> None:
    """Leave nothing behind."""
    shutil.rmtree(PREFECT_HOME, ignore_errors=True)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """A test that raised torch's thread count does not slow down, or change the bits of, the next one."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer of `make_tiny_tokenizer`."""
    return make_tiny_tokenizer()


def make_tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE: any text round-trips, digits stay single, `<|pad|>` is 0 and `<|end|>` is 1."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL_TOKENS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        padding_side="left",
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: PreTrainedTokenizerFast) -> Path:
    """A folder written by `save_pretrained`: a random two-layer Qwen3 of width 64 in float32, and its tokenizer."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("model")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=len(tiny_tokenizer),
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=16,
                max_position_embeddings=1024,
                tie_word_embeddings=True,
                initializer_range=0.08,
                pad_token_id=0,
                eos_token_id=1,
                bos_token_id=None,
            )
        )
    model.save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_classifier(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: PreTrainedTokenizerFast) -> Path:
    """A folder written by `save_pretrained`: a random Qwen3 with one output, of a few thousand weights, and its tokenizer."""
    import torch
    from transformers import Qwen3Config, Qwen3ForSequenceClassification

    folder = tmp_path_factory.mktemp("classifier")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3ForSequenceClassification(
            Qwen3Config(
                vocab_size=len(tiny_tokenizer),
                hidden_size=16,
                intermediate_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=1,
                head_dim=8,
                max_position_embeddings=256,
                initializer_range=0.5,
                num_labels=1,
                pad_token_id=0,
                eos_token_id=1,
                bos_token_id=None,
            )
        )
    model.save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder
