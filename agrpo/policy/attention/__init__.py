"""Attention over a packed row: each sample sees its own history, and nothing of its siblings.

A prefix that samples share is forwarded once. Each segment's queries read the keys of its path: torch's own kernels do
it exactly on any device, and on a GPU one call of a kernel for many lengths reads the whole row.
"""

from __future__ import annotations

from agrpo.policy.attention.interface import PACKED, attention_of, packed_attention, register_attention
from agrpo.policy.attention.layout import Layout

__all__ = ["PACKED", "Layout", "attention_of", "packed_attention", "register_attention"]
