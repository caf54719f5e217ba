"""Text of tokens one by one, and what is said where the run's tokenizer is gone."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models

from agrpo.instruments.rollout_page.pieces import TokenPieces, pieces_of


def document(model: Path, digest: str | None = None) -> dict:
    found = {"settings": {"tree": {"model": {"path": str(model)}}}}
    return found if digest is None else {**found, "model_digests": {"tokenizer.json": digest}}


def digest_of(model: Path) -> str:
    return hashlib.blake2b((model / "tokenizer.json").read_bytes(), digest_size=16).hexdigest()


@pytest.fixture(scope="module")
def ids(tiny_tokenizer):
    return lambda text: tiny_tokenizer(text)["input_ids"]


def test_pieces_join_to_the_text_and_special_tokens_are_kept(tiny_model, ids, tmp_path):
    pieces = pieces_of(document(tiny_model, digest_of(tiny_model)), tmp_path)
    assert pieces.missing is None
    assert (
        "".join(piece or "" for piece in pieces(ids("4 + 5 = hello\n there<|end|>"))) == "4 + 5 = hello\n there<|end|>"
    )
    assert pieces.alone(1) == "<|end|>"


def test_a_character_of_several_tokens_stands_at_its_last_one(tiny_model, ids, tmp_path):
    pieces = pieces_of(document(tiny_model), tmp_path)
    assert len(ids("☃")) == 3
    assert pieces(ids("4☃5")) == ["4", "⟨e2⟩", "⟨98⟩", "☃", "5"]
    assert pieces.alone(ids("☃")[0]) == "⟨e2⟩"


def test_bytes_that_make_no_character_show_as_bytes_and_the_text_goes_on(tiny_model, ids, tmp_path):
    pieces = pieces_of(document(tiny_model), tmp_path)
    lone, five = ids("☃")[0], ids("5")[0]
    assert pieces([lone, five, five]) == ["⟨e2⟩", "5", "5"]
    assert pieces([lone] * 9 + [five]) == ["⟨e2⟩"] * 9 + ["5"]
    assert pieces([99_999]) == ["⟨id 99999⟩"]


def test_bytes_of_a_sentencepiece_vocabulary_are_told_too():
    vocabulary = {name: place for place, name in enumerate(["▁a", "b", "<0xE2>", "<0x98>", "<0x83>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    pieces = TokenPieces(lambda ids: tokenizer.decode(ids, skip_special_tokens=False), tokenizer.id_to_token)
    assert pieces([0, 1, 2, 3, 4, 0]) == [" a", "b", "⟨e2⟩", "⟨98⟩", "☃", " a"]


def test_a_tokenizer_that_is_gone_or_changed_is_not_used(tiny_model, tmp_path):
    gone = pieces_of(document(tmp_path / "gone", "00"), tmp_path)
    assert (gone([5, 6]), gone.alone(5)) == ([None, None], None)
    assert f"no {tmp_path}/gone/tokenizer.json" in (gone.missing or "")
    changed = pieces_of(document(tiny_model, "00"), tmp_path)
    assert f"{tiny_model}/tokenizer.json has changed since the run began" in (changed.missing or "")


def test_the_exported_model_of_the_run_stands_in_for_one_that_is_gone(tiny_model, ids, tmp_path):
    shutil.copytree(tiny_model, tmp_path / "model")
    pieces = pieces_of(document(tmp_path / "gone", digest_of(tiny_model)), tmp_path)
    assert pieces(ids("45")) == ["4", "5"]


def test_a_model_of_the_hub_that_is_not_on_this_machine_is_said(tmp_path):
    found = pieces_of(document(Path("nobody/nothing")), tmp_path)
    assert "the run's tokenizer is not at hand (no nobody/nothing/tokenizer.json" in (found.missing or "")
