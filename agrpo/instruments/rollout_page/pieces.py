"""Text of tokens one by one, by the tokenizer that the run began with."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agrpo.instruments.rollout_page.tokens import Pieces

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a decoder gives for bytes that are not a whole character."""
LONGEST_CHARACTER = 4
"""Bytes of a character in UTF-8, and so the most tokens that can make one up."""


class TokenPieces:
    """Pieces of a text as its tokens make them.

    A character of several tokens stands at its last one; the ones before show their bytes, as ⟨e2 98⟩.
    """

    missing = None

    def __init__(self, decode: Callable[[list[int]], str], name: Callable[[int], str | None]) -> None:
        """`decode` gives the text of ids, special tokens included; `name` a token as the vocabulary writes it."""
        self._decode = decode
        self._name = name

    def __call__(self, token_ids: Sequence[int]) -> list[str]:
        """Decodes in a window that grows until it ends with a whole character."""
        ids, pieces = list(token_ids), list[str]()
        begin, shown = 0, 0
        for place in range(len(ids)):
            before = self._decode(ids[begin:shown])
            text = self._decode(ids[begin : place + 1])
            if len(text) > len(before) and not text.endswith(UNFINISHED):
                piece = text[len(before) :]
                pieces.append(piece.lstrip(UNFINISHED) or piece if place > shown else piece)
                begin, shown = shown, place + 1
            else:
                pieces.append(self._spelled(ids[place]))
                if place - shown >= LONGEST_CHARACTER:
                    begin = shown = place + 1
        return pieces

    def alone(self, token_id: int) -> str:
        text = self._decode([token_id])
        return self._spelled(token_id) if not text or UNFINISHED in text else text

    def _spelled(self, token_id: int) -> str:
        """The bytes of a token that is no text by itself."""
        name = self._name(token_id)
        if name is None:
            return f"⟨id {token_id}⟩"
        if name.startswith("<0x") and name.endswith(">"):
            return f"⟨{name[3:-1].lower()}⟩"
        if name and all(letter in BYTES for letter in name):
            return f"⟨{' '.join(f'{BYTES[letter]:02x}' for letter in name)}⟩"
        return f"⟨{name}⟩"


class NoPieces:
    """No text: the tokenizer is gone, or is not the run's."""

    def __init__(self, why: str) -> None:
        self.missing = why

    def __call__(self, token_ids: Sequence[int]) -> list[None]:
        return [None] * len(token_ids)

    def alone(self, token_id: int) -> None:
        return None


def pieces_of(document: Mapping[str, Any], run_folder: Path) -> Pieces:
    """The run's tokenizer: of the model it began with, or of the weights it exported; else why there is none.

    `document`: run.json. Nothing is downloaded.
    """
    model = document["settings"]["tree"].get("model", {})
    path = str(model.get("path", ""))
    expected = document.get("model_digests", {}).get("tokenizer.json")
    problems: list[str] = []
    for folder in (Path(path), run_folder / "model"):
        file = folder / "tokenizer.json"
        if not path or not file.is_file():
            problems.append(f"no {file}")
        elif expected is not None and _digest(file) != expected:
            problems.append(f"{file} has changed since the run began")
        else:
            return _from_file(file)
    if path and expected is None:
        found = _from_transformers(path, model.get("revision"), bool(model.get("trust_remote_code")))
        if isinstance(found, TokenPieces):
            return found
        problems.append(found)
    return NoPieces(f"the run's tokenizer is not at hand ({'; '.join(problems)}): the text is shown without its tokens")


def _from_file(file: Path) -> TokenPieces:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    return TokenPieces(lambda ids: tokenizer.decode(ids, skip_special_tokens=False), tokenizer.id_to_token)


def _from_transformers(path: str, revision: str | None, trust_remote_code: bool) -> TokenPieces | str:
    """The tokenizer of a hub id from the local cache, or of a folder without tokenizer.json; or why there is none."""
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(
            path, revision=revision, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except (OSError, ValueError) as error:
        return f"{path}: {str(error).strip().splitlines()[0]}"
    return TokenPieces(
        lambda ids: tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False),
        tokenizer.convert_ids_to_tokens,
    )


def _digest(file: Path) -> str:
    """As run.json has it."""
    return hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()


def _byte_letters() -> dict[str, int]:
    """The letters that byte-level vocabularies write bytes with: printable ones as they are, others from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


BYTES = _byte_letters()
"""Byte by letter of a byte-level vocabulary."""
