"""A classifier's tokenizer: padded on the right, and what makes one text of a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agrpo.classifiers import Source
from agrpo.errors import RewardError
from agrpo.records.prompt import Message

LONGEST_KNOWN = 10**9
"""A tokenizer that knows no longest text says a number beyond."""


def load_tokenizer(source: Source, *, needs_template: bool) -> Any:
    """It pads on the right. Raises `RewardError` where it has neither pad token nor EOS.

    `needs_template`: whether to refuse one without a chat template.
    """
    from transformers import AutoTokenizer

    auto: Any = AutoTokenizer
    name = source.tokenizer or source.path
    if name.startswith((".", "/", "~")) and not Path(name).is_dir():
        raise RewardError(f"tokenizer: no folder {name}; give a folder written by save_pretrained, or a hub id")
    try:
        tokenizer = auto.from_pretrained(
            name,
            revision=source.revision if source.tokenizer is None else None,
            trust_remote_code=source.trust_remote_code,
        )
    except Exception as error:  # the library raises what its many kinds raise
        reason = " ".join(str(error).split())[:300]
        raise RewardError(
            f"tokenizer: {name} holds none that loads ({type(error).__name__}: {reason}); save the classifier's tokenizer "
            "there, or name another in tokenizer"
        ) from None
    if {*tokenizer.get_vocab()} <= {*tokenizer.all_special_tokens}:  # made up from the model's kind alone
        raise RewardError(f"tokenizer: {name} has no vocabulary of one; save the classifier's tokenizer there")
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise RewardError(f"tokenizer: that of {name} has no pad token and no EOS; give it one, and save it again")
        tokenizer.pad_token = tokenizer.eos_token
    if needs_template and not tokenizer.chat_template:
        raise RewardError(
            f"tokenizer: that of {name} has no chat template; save one with it, or set conversation = "
            '"concatenate", which puts the messages\' texts one behind the other'
        )
    tokenizer.padding_side = "right"
    return tokenizer


def longest_text(max_length: int | None, positions: int | None, tokenizer: Any) -> int | None:
    """Tokens that a text may have: what is asked for, else what model and tokenizer can take. None: as many as it likes."""
    if max_length is not None:
        return max_length
    told = [positions, tokenizer.model_max_length]
    known = [number for number in told if number is not None and number < LONGEST_KNOWN]
    return min(known) if known else None


def templated(tokenizer: Any, conversation: Sequence[Message], extra: dict[str, Any]) -> str:
    """The conversation as the chat template writes it, special tokens included. `extra`: further keywords of the template."""
    return tokenizer.apply_chat_template(list(conversation), tokenize=False, **extra)


def concatenated(conversation: Sequence[Message]) -> str:
    """The texts of its messages, one behind the other."""
    return "".join(str(message.get("content") or "") for message in conversation)
