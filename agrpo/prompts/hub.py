"""Prompts from a dataset of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from agrpo.errors import PromptError
from agrpo.prompts import DatasetRow
from agrpo.prompts.rows import checked
from agrpo.registry import part


@part
class Hub:
    """Rows of one split, downloaded once and then read from the local cache."""

    path: str
    """The dataset's id, such as `openai/gsm8k`, or a local folder of data files."""
    split: str = "train"
    """As `datasets` writes it; `train[:1000]` takes a part."""
    config: str | None = None
    """One of the dataset's configurations. None: its only one, or its default."""
    revision: str | None = None
    """Branch, tag or commit. None: the newest of the default branch."""

    def __call__(self) -> Sequence[DatasetRow]:
        """The rows. Raises `PromptError`."""
        import datasets
        from datasets import config
        from datasets.exceptions import DatasetsError

        try:
            rows = datasets.load_dataset(self.path, self.config, split=self.split, revision=self.revision)
        except (OSError, ValueError, DatasetsError) as error:
            raise PromptError(f"{self._what} cannot be loaded: {error}. {_advice(config.HF_HUB_OFFLINE)}") from error
        return checked(cast("Sequence[DatasetRow]", rows), self._what)

    @property
    def _what(self) -> str:
        config = f', config "{self.config}"' if self.config else ""
        revision = f', revision "{self.revision}"' if self.revision else ""
        return f'dataset "{self.path}"{config}, split "{self.split}"{revision}'


def _advice(offline: bool) -> str:
    if offline:
        return (
            "HF_HUB_OFFLINE is set, so only what was downloaded before can be used; "
            'unset it, download the dataset first, or read local files with prompts.name = "files"'
        )
    return (
        "Check the id, the split and the connection; a private dataset needs a login (hf auth login). "
        "A machine without a connection can set HF_HUB_OFFLINE=1 to use what was downloaded before"
    )
