"""Prompts made by reasoning_gym, judged by its own scorers. Stojanovski et al., arXiv:2505.24760."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import field, fields
from typing import TYPE_CHECKING, Annotated, Any, overload

from pydantic import Field

from agrpo.errors import MissingPackage, PromptError
from agrpo.prompts import DatasetRow
from agrpo.registry import nearest, part

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset


@part
class ReasoningGym:
    """Questions of one dataset, each made when it is asked for. The reward `reasoning_gym` judges the answers."""

    dataset: str
    """A dataset of reasoning_gym, such as `chain_sum`."""
    size: Annotated[int, Field(ge=1)] = 10_000
    """Questions."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Question i is drawn from seed + i: two sets whose seeds are closer than `size` share questions."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Keywords of the dataset, such as `min_terms`."""
    system: str | None = None
    """A system message before every question. None: there is none."""

    def __call__(self) -> Sequence[DatasetRow]:
        """The rows. Raises `PromptError`, or `MissingPackage` where reasoning_gym is not installed."""
        dataset = self._made()
        _check_judged_from_json(self.dataset, dataset)
        return _Questions(self.dataset, dataset, self.system)

    def _made(self) -> ProceduralDataset:
        try:
            from reasoning_gym import create_dataset
            from reasoning_gym.factory import DATASETS
        except ImportError as error:
            raise MissingPackage('prompts "reasoning_gym" need reasoning-gym: pip install reasoning-gym') from error
        if self.dataset not in DATASETS:
            raise PromptError(f'reasoning_gym has no dataset "{self.dataset}"; {nearest(self.dataset, list(DATASETS))}')
        try:
            return create_dataset(self.dataset, size=self.size, seed=self.seed, **self.settings)
        except (TypeError, ValueError, AssertionError) as error:
            known = ", ".join(
                knob.name for knob in fields(DATASETS[self.dataset][1]) if knob.name not in ("seed", "size")
            )
            raise PromptError(f'prompts.settings do not fit "{self.dataset}": {error}; it has: {known}') from None


class _Questions(Sequence[DatasetRow]):
    def __init__(self, name: str, dataset: ProceduralDataset, system: str | None) -> None:
        self._name = name
        self._dataset = dataset
        self._before = [] if system is None else [{"role": "system", "content": system}]

    def __len__(self) -> int:
        return len(self._dataset)

    @overload
    def __getitem__(self, index: int) -> DatasetRow: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[DatasetRow]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"question {index} of {len(self)}")
        item = self._dataset[place]
        return {
            "prompt": [*self._before, {"role": "user", "content": item["question"]}],
            "reasoning_gym_dataset": self._name,
            "reasoning_gym_entry": json.dumps(item),
        }


def _check_judged_from_json(name: str, dataset: ProceduralDataset) -> None:
    """Refuse a dataset whose scorer judges an item read back from JSON otherwise than the item itself."""
    item = dataset[0]
    direct = dataset.score_answer(item["answer"], item)
    if dataset.score_answer(item["answer"], json.loads(json.dumps(item))) != direct:
        raise PromptError(
            f'"{name}" cannot be used: its scorer judges a question that was stored as JSON otherwise than the question '
            "itself, so right answers would count as wrong; choose another dataset"
        )
