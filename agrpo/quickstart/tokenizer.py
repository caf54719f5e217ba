"""A tokenizer trained in code in under a second, with a chat template that only ever appends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, END = "<|pad|>", "<|end|>"
POLICY = "<|assistant|>"
ROLES = ("<|system|>", "<|user|>", POLICY, "<|tool|>")
THINK = ("<think>", "</think>")
"""Around a thought. The answer is what follows the second."""
CALL = ("<tool_call>", "</tool_call>")
"""Around a call of a tool, in the format `tagged`."""

MOST_TOKENS = 520
LONGEST_PROMPT = 1024

NUMBERS = r"\d+\.\d|\d"
"""A number with a decimal, as number_sorting writes them, may become one token; else digits stay single."""

CHAT_TEMPLATE = (
    "{%- if tools -%}<|system|>"
    "{%- for tool in tools -%}"
    "{{ tool.function.name + '(' + (tool.function.parameters.properties | join(', ')) + ')\\n' }}"
    "{%- endfor -%}<|end|>{%- endif -%}"
    "{%- for message in messages -%}"
    "{{ '<|' + message['role'] + '|>' + (message['content'] or '') }}"
    "{%- for call in message['tool_calls'] or [] -%}"
    "{{ '<tool_call>' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) + '</tool_call>' }}"
    "{%- endfor -%}<|end|>"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)
"""Tools are shown by their names and those of their arguments: `add(a, b)`. Their whole schemas would be most of a prompt."""


def train_tokenizer(texts: Iterable[str], words: Sequence[str] = THINK) -> PreTrainedTokenizerFast:
    """Byte-pair encoding of `texts`; any other text round-trips too, since every byte is in the alphabet.

    `words` are a token each, and are kept when special tokens are skipped in decoding.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(NUMBERS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=MOST_TOKENS,
        special_tokens=[PAD, END, *ROLES],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(word, special=False, normalized=False) for word in words])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        padding_side="left",
        model_max_length=LONGEST_PROMPT,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )
