"""Text of others on a terminal."""

from __future__ import annotations

from agrpo.visible import harmless, visible


def test_control_characters_are_drawn():
    assert harmless("\x1b[31mred\x07\r\x00") == "␛[31mred␇␍␀"
    assert harmless("\x7f\x9b") == "⟨7f⟩⟨9b⟩"


def test_text_is_not_turned_around():
    assert harmless("a\u202eb\u2066c") == "a⟨202e⟩b⟨2066⟩c"


def test_lines_and_tabs_stay_or_are_drawn():
    assert harmless("a\tb\nc") == "a\tb\nc"
    assert visible("a\tb\nc") == "a⇥b↵\nc"


def test_what_is_no_control_character_stays_as_it_is():
    text = "Grüße, 😀 ☃ 数 ‹tok›"
    assert visible(text) == harmless(text) == text
