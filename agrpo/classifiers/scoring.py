"""A sequence classifier in memory: one number for each text, whatever texts stand beside it in its batch."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from agrpo.classifiers import Source
from agrpo.classifiers.files import positions_of
from agrpo.classifiers.tokenizer import load_tokenizer, longest_text
from agrpo.errors import RewardError
from agrpo.loading import LOADING
from agrpo.records.score import Unjudged


class Classifier:
    """A model on its device, with its tokenizer."""

    def __init__(self, model: Any, tokenizer: Any, *, max_length: int | None, batch_size: int) -> None:
        """`max_length`: tokens of the longest text that is judged; None: what model and tokenizer can take."""
        self.tokenizer = tokenizer
        self.max_length = longest_text(max_length, positions_of(model.config.to_dict()), tokenizer)
        self._model = model
        self._batch_size = batch_size
        self._own_pad = _own_pad(model.config)
        self._inputs = inspect.signature(model.forward).parameters.keys()

    def scores(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[float | Unjudged]:
        """The logit of each text, in float32; a reason where a text is too long, for it is never cut.

        Texts of like length share a batch. Which ones do depends on `texts` alone. Raises `RewardError` where a GPU has
        no room for a batch.
        """
        encoded = [dict(self.tokenizer(text, add_special_tokens=add_special_tokens)) for text in texts]
        lengths = [len(each["input_ids"]) for each in encoded]
        unfit = {place: reason for place, length in enumerate(lengths) if (reason := self._unfit(length)) is not None}
        found: dict[int, float | Unjudged] = {**unfit}
        fitting = sorted(range(len(texts)), key=lambda place: lengths[place])
        for places in _slices([place for place in fitting if place not in unfit], self._batch_size):
            found |= zip(places, self._logits([encoded[place] for place in places]), strict=True)
        return [found[place] for place in range(len(texts))]

    def _unfit(self, length: int) -> Unjudged | None:
        if length == 0:
            return Unjudged("its text has no token")
        if self.max_length is not None and length > self.max_length:
            return Unjudged(
                f"its text has {length} tokens, the reward model takes {self.max_length} (max_length), and none is cut"
            )
        return None

    def _logits(self, encoded: list[dict[str, Any]]) -> list[float]:
        batch = self.tokenizer.pad(encoded, padding=True, return_attention_mask=True, return_tensors="pt")
        self._fill(batch["input_ids"], batch["attention_mask"] == 0)
        kept = {name: tensor.to(self._model.device) for name, tensor in batch.items() if name in self._inputs}
        try:
            with torch.inference_mode():
                logits = self._model(**kept).logits
        except torch.OutOfMemoryError as error:
            raise RewardError(
                f"{len(encoded)} texts of up to {kept['input_ids'].shape[1]} tokens do not fit on {self._model.device} "
                f"({str(error).splitlines()[0]}); lower batch_size or max_length"
            ) from None
        return logits.float()[:, 0].tolist()

    def _fill(self, ids: torch.Tensor, padded: torch.Tensor) -> None:
        """Pad `[texts, T]` such that a decoder's head finds the last token of each text, which is the last that is no pad.

        Where the model names no pad of its own, one that stands in none of the texts: an EOS would be skipped at their ends.
        """
        pad = self._own_pad
        if pad is None:
            written = {*ids[~padded].tolist()}
            pad = next(id for id in itertools.count() if id not in written)
        ids[padded] = pad
        self._model.config.get_text_config().pad_token_id = self._model.config.pad_token_id = pad


def load_classifier(
    source: Source,
    *,
    dtype: str,
    device: str,
    threads: int,
    max_length: int | None,
    batch_size: int,
    needs_template: bool,
) -> Classifier:
    """Load it, for good. Raises `RewardError` where it is no classifier of one output, or there is no such device."""
    tokenizer = load_tokenizer(source, needs_template=needs_template)
    torch.set_num_threads(threads)
    place = _device(device)
    model, told = _loaded(source, dtype)
    lacking = sorted(told["missing_keys"])
    if lacking:
        raise RewardError(
            f"path: {source.path} has no {', '.join(lacking[:3])}{', …' if len(lacking) > 3 else ''}, which would be drawn at "
            "random; save the classifier whole, with its head"
        )
    if model.config.num_labels != 1:
        raise RewardError(f"path: {source.path} has num_labels = {model.config.num_labels}; expected 1")
    model.requires_grad_(False).eval().to(place)
    return Classifier(model, tokenizer, max_length=max_length, batch_size=batch_size)


def _loaded(source: Source, dtype: str) -> tuple[Any, dict[str, Any]]:
    from transformers import AutoModelForSequenceClassification

    auto: Any = AutoModelForSequenceClassification
    with LOADING:
        return auto.from_pretrained(
            source.path,
            revision=source.revision,
            trust_remote_code=source.trust_remote_code,
            dtype=getattr(torch, dtype),
            output_loading_info=True,
        )


def _own_pad(config: Any) -> int | None:
    """The pad that the model's configuration names; None: none, or as some write it, -1."""
    pad = config.get_text_config().pad_token_id
    return pad if pad is not None and pad >= 0 else None


def _device(name: str) -> torch.device:
    device = torch.device(name)
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise RewardError(f'device = "{name}": its process sees {count} GPUs; name another, or "cpu"')
        torch.cuda.set_device(device.index or 0)
    return device


def _slices(places: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(places), size):
        yield places[start : start + size]
