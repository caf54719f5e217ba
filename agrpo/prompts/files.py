"""Prompts from files: JSON lines, a JSON list, CSV, Parquet, or a folder that `datasets` saved."""

from __future__ import annotations

import glob
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from agrpo.errors import PromptError
from agrpo.prompts import DatasetRow
from agrpo.prompts.rows import TableRows, checked
from agrpo.registry import part


@part
class Files:
    """Rows of a file, of every file that a glob matches (in the order of their names), or of a saved dataset."""

    path: str
    """A `.jsonl`, `.json`, `.csv` or `.parquet` file, a glob over files of one kind, or a folder written by
    `save_to_disk`. In CSV the prompt column holds the messages as JSON. A saved dataset stays on disk; files are read
    into memory."""

    def __call__(self) -> Sequence[DatasetRow]:
        """The rows. Raises `PromptError`."""
        where = f'prompts.path = "{self.path}"'
        try:
            rows = _rows(self.path)
        except PromptError as error:
            raise PromptError(f"{where}: {error}") from None
        return checked(rows, where)


def _rows(path: str) -> Sequence[DatasetRow]:
    paths = _paths(path)
    if paths[0].is_dir():
        return _saved(paths[0])
    kinds = sorted({file.suffix.lower() for file in paths})
    if len(kinds) > 1 or kinds[0] not in _READERS:
        raise PromptError(f"matches files of kind {', '.join(kinds)}; expected one of {', '.join(_READERS)}")
    return _READERS[kinds[0]](paths)


def _paths(path: str) -> list[Path]:
    plain = Path(path).expanduser()
    if plain.exists():
        return [plain]
    paths = sorted(path for path in map(Path, glob.glob(str(plain), recursive=True)) if path.is_file())
    if not paths:
        raise PromptError(f"there is no such file or folder, and no file matches it as a glob (from {Path.cwd()})")
    return paths


def _saved(folder: Path) -> Sequence[DatasetRow]:
    import datasets

    try:
        saved = datasets.load_from_disk(str(folder))
    except FileNotFoundError:
        raise PromptError(
            f"the folder was not written by datasets' save_to_disk; for files in it give a glob, such as {folder}/*.parquet"
        ) from None
    except (OSError, ValueError) as error:
        raise PromptError(f"the saved dataset cannot be read: {error}") from None
    if isinstance(saved, datasets.DatasetDict):
        splits = ", ".join(str(folder / str(split)) for split in saved)
        raise PromptError(f"the folder holds several splits; give the folder of one: {splits}")
    return cast("Sequence[DatasetRow]", saved)


def _parquet(paths: list[Path]) -> Sequence[DatasetRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables: list[pa.Table] = []
    for path in paths:
        try:
            # Not `read_table`, which would also make columns of folder names such as `split=train`.
            tables.append(pq.ParquetFile(path).read())
        except (pa.ArrowException, OSError) as error:
            raise PromptError(f"{path} cannot be read as Parquet: {error}") from None
    try:
        return TableRows(pa.concat_tables(tables, promote_options="permissive"))
    except pa.ArrowException as error:
        raise PromptError(f"the files' columns do not fit each other: {error}") from None


def _csv(paths: list[Path]) -> list[DatasetRow]:
    import pyarrow as pa
    import pyarrow.csv

    rows: list[DatasetRow] = []
    for path in paths:
        try:
            options = pyarrow.csv.ParseOptions(newlines_in_values=True)
            read = pyarrow.csv.read_csv(path, parse_options=options).to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise PromptError(f"{path} cannot be read as CSV: {error}") from None
        rows += [_with_messages(row, f"{path}, row {number}") for number, row in enumerate(read)]
    return rows


def _with_messages(row: dict[str, Any], where: str) -> dict[str, Any]:
    if "prompt" not in row:
        return row
    try:
        return {**row, "prompt": json.loads(row["prompt"])}
    except (TypeError, ValueError):
        raise PromptError(
            f"{where}: the prompt is {str(row['prompt'])[:60]!r}; in CSV it must hold the messages as JSON, "
            'such as [{"role": "user", "content": "…"}]'
        ) from None


def _json_lines(paths: list[Path]) -> list[DatasetRow]:
    return [
        _object(_parsed(line, f"{path}, line {number}"), f"{path}, line {number}")
        for path in paths
        for number, line in enumerate(_bytes(path).split(b"\n"), 1)
        if line.strip()
    ]


def _json(paths: list[Path]) -> list[DatasetRow]:
    rows: list[DatasetRow] = []
    for path in paths:
        read = _parsed(_bytes(path), str(path))
        if not isinstance(read, list):
            raise PromptError(f"{path} holds a JSON {type(read).__name__}; expected a list of rows (or a .jsonl file)")
        rows += [_object(row, f"{path}, row {number}") for number, row in enumerate(read)]
    return rows


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PromptError(f"{path} cannot be read: {error.strerror}") from None


def _parsed(text: bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise PromptError(f"{where} is not JSON: {error}") from None


def _object(value: Any, where: str) -> DatasetRow:
    if not isinstance(value, dict):
        raise PromptError(f"{where} is a JSON {type(value).__name__}; expected an object, one per prompt")
    return value


_READERS: dict[str, Callable[[list[Path]], Sequence[DatasetRow]]] = {
    ".csv": _csv,
    ".json": _json,
    ".jsonl": _json_lines,
    ".parquet": _parquet,
}
