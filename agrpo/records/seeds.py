"""Seeds: every random draw of a run derives from the run's seed and the place of the draw, never from time or order."""

from __future__ import annotations

import hashlib


def derive_seed(*place: int | str) -> int:
    """A seed below 2**63 that depends on every part of `place`, such as (run seed, ticket, rollout, turn)."""
    digest = hashlib.blake2b("/".join(str(part) for part in place).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
