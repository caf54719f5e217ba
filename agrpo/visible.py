"""Text of others on a terminal: control characters show instead of acting. What a policy or a reward wrote may hold any."""

from __future__ import annotations

_TURNS_TEXT_AROUND = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Unicode's marks, embeddings, overrides and isolates of direction."""

_HARMLESS = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},
    **{code: f"⟨{code:02x}⟩" for code in (*range(0x7F, 0xA0), *_TURNS_TEXT_AROUND)},
}
_VISIBLE = {**_HARMLESS, ord("\n"): "↵\n", ord("\t"): "⇥"}


def harmless(text: str) -> str:
    """The text with its line breaks and tabs; any other control character is drawn."""
    return text.translate(_HARMLESS)


def visible(text: str) -> str:
    """The text with line breaks and tabs drawn too, as `↵` before the break and `⇥`."""
    return text.translate(_VISIBLE)
