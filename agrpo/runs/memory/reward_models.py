"""What reward models take, each in a process of its own for every scorer: of the machine, and of a GPU that it names."""

from __future__ import annotations

from collections.abc import Sequence

from agrpo.classifiers.files import positions_of, read_configuration
from agrpo.config import ModelSection, RunConfig
from agrpo.errors import RewardError
from agrpo.rewards import resident_of
from agrpo.rewards.reward_model import RewardModel
from agrpo.runs.memory.parts import BYTES, IMPORTS, SPARE, Part, exact, fixed, passing
from agrpo.runs.memory.rows import RowSize
from agrpo.runs.memory.shape import ModelShape, read_shape

PROCESS = "judge"
STREAM, INSIDE = 4, 3
"""Numbers of a token that a forward pass has at a time: of the width between layers, and of that inside the feed-forward part."""


def reward_models(config: RunConfig) -> list[RewardModel]:
    """Those of the run."""
    found = [resident_of(section) for section in config.rewards]
    return [each for each in found if isinstance(each, RewardModel)]


def gpu_index(model: RewardModel) -> int | None:
    """Of the GPUs that the run is started with; None: it is on the CPU."""
    return int(model.device.partition(":")[2] or 0) if model.on_gpu else None


def judge_imports(config: RunConfig) -> list[Part]:
    """What their processes hold of the machine before they have a model."""
    sizes = [IMPORTS.classifier + (IMPORTS.driver if model.on_gpu else 0) for model in reward_models(config)]
    return [fixed(PROCESS, "imports", config.workers.scorers * sum(sizes))] if sizes else []


def judge_parts(config: RunConfig, row: RowSize, index: int | None) -> list[Part]:
    """What they hold in the machine (`index` None), or on one GPU."""
    parts: list[Part] = []
    for model in reward_models(config):
        shape = _shape(model)
        if gpu_index(model) != index:
            continue
        each = [] if index is None else [fixed(PROCESS, "the driver and torch", IMPORTS.gpu_context)]
        if shape is not None:
            each += _held(model, shape, row)
        parts += [part for part in each for _ in range(config.workers.scorers)]
    return parts


def unknown_models(config: RunConfig) -> list[str]:
    """Paths of those that nothing can be said of."""
    return [model.path for model in reward_models(config) if _shape(model) is None]


def _held(model: RewardModel, shape: ModelShape, row: RowSize) -> Sequence[Part]:
    size, length = BYTES[model.dtype], _longest(model, row)
    narrower = ('dtype = "bfloat16" of the reward model',) if model.dtype == "float32" else ()
    fewer = (f"batch_size below {model.batch_size} of the reward model",) if model.batch_size > 1 else ()
    batch = SPARE * model.batch_size * length * (STREAM * shape.hidden + INSIDE * shape.inner) * size
    return [
        exact(PROCESS, f"weights of {model.path}", size * shape.num_weights, *narrower),
        passing(PROCESS, f"a batch of {model.batch_size} x {length} tokens", batch, *fewer),
    ]


def _longest(model: RewardModel, row: RowSize) -> int:
    """Tokens of a text: a conversation of the run, as far as it is judged at all."""
    try:
        positions = positions_of(read_configuration(model.source))
    except RewardError:
        positions = None
    return min(number for number in (model.max_length, positions, row.sequence) if number is not None)


def _shape(model: RewardModel) -> ModelShape | None:
    return read_shape(ModelSection(path=model.path, revision=model.revision))
