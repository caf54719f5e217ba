"""Sequence classifiers of one output, as reward models are kept: what their files say, and what they make of texts.

files       what keeps a model from being one, told from its configuration alone
tokenizer   its tokenizer, and conversations as text
scoring     the model itself; the only page here that needs torch
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a classifier and its tokenizer come from."""

    path: str
    """Folder written by `save_pretrained`, or a hub id."""
    revision: str | None = None
    """Branch, tag or commit of a hub id."""
    tokenizer: str | None = None
    """Folder or hub id of another tokenizer. None: the model's own."""
    trust_remote_code: bool = False


__all__ = ["Source"]
