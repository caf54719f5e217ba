"""Registries: the name is the file; unknown names and knobs are refused with the nearest one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agrpo.errors import ConfigError, UnknownName
from agrpo.losses import losses
from agrpo.registry import Registry, knobs_of

PART = '''
from typing import Annotated
from pydantic import Field
from agrpo.registry import part

@part
class Triple:
    """Three times."""

    times: Annotated[int, Field(ge=1)] = 3
    """How often."""

    def __call__(self, value: int) -> int:
        return self.times * value
'''


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    folder = tmp_path / "a_room"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "triple.py").write_text(PART)
    (folder / "r_80_20.py").write_text(PART)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Registry("a_room")
    for name in [name for name in sys.modules if name.partition(".")[0] == "a_room"]:
        del sys.modules[name]


def test_one_added_file_is_one_more_name(room: Registry):
    assert room.names() == ["r_80_20", "triple"]
    assert room.build("triple", {"times": 2})(5) == 10


def test_a_dash_and_a_leading_digit_find_their_file(room: Registry):
    assert room["80-20"].__name__ == "Triple"


def test_an_unknown_name_is_refused_with_the_nearest(room: Registry):
    with pytest.raises(UnknownName, match='no part named "tripel"; did you mean "triple"'):
        room["tripel"]


def test_an_unknown_or_bad_knob_is_refused_by_name(room: Registry):
    with pytest.raises(ConfigError) as caught:
        room.build("triple", {"time": 2, "times": 0})
    assert caught.value.problems == [
        "times = 0: input should be greater than or equal to 1",
        'time: unknown setting; did you mean "times"?',
    ]


def test_what_belongs_to_a_class_is_no_knob():
    assert knobs_of(losses["score_centering"]) == ["epsilon", "epsilon_high", "importance_min", "importance_max"]


def test_a_part_is_frozen(room: Registry):
    with pytest.raises(AttributeError):
        room["triple"]().times = 4
