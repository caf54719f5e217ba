"""What the processes of a run take: how many bytes each part of each of them is likely to need, and at least.

Measured with torch 2.13 on Linux (docs/memory.md): what a process takes before it has a model, and how many numbers a
layer keeps of a token for its backward pass. The rest is arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

from agrpo.config import RunConfig
from agrpo.runs.memory.rows import RowSize
from agrpo.runs.memory.shape import ModelShape

MIB = 2**20
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
ADAPTER_BYTES = 4
"""Of a number of an adapter, whatever the model's are in."""
REFERENCE = "the reference policy's weights"
ROW, RECOMPUTE = "step.micro_tokens", "model.activation_checkpointing = true"
SMALL_MATRICES = "adapter.rank = 16, which trains small matrices alone"
SPARE = 1.25
"""What an allocator keeps beside what is in use."""
LEAST_ROW = 1 / 8
"""How full the fullest row is at least taken to be, where it is asked whether a run can fit at all."""
TILE = 2**25
"""Most logits that the head holds at once, of `TILE_POSITIONS` positions at most."""
TILE_POSITIONS = 1024
TILES = 4
"""Tiles of logits that are there at once: the logits, two that come of them, and their gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One thing that a process holds, in bytes."""

    process: str
    what: str
    likely: int
    least: int
    """What it takes at any rate: a run is refused by this alone."""
    lower: tuple[str, ...] = ()
    """Settings that make it smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imports:
    """What a process takes before it has a model, by what it imports; a GPU's driver maps more."""

    learner: int = 560 * MIB
    generator: int = 430 * MIB
    driver: int = 1024 * MIB
    """Beside them, where torch is a build for GPUs."""
    recorder: int = 215 * MIB
    scorer: int = 130 * MIB
    judge: int = 110 * MIB
    """A reward's template, and its children."""
    classifier: int = 390 * MIB
    """A reward model's process."""
    flow: int = 160 * MIB
    prefect: int = 240 * MIB
    server: int = 1200 * MIB
    gpu_context: int = 512 * MIB


IMPORTS = Imports()


def fixed(process: str, what: str, likely: int) -> Part:
    """A part that is known before, but for a little."""
    return Part(process=process, what=what, likely=likely, least=round(0.7 * likely))


def exact(process: str, what: str, size: float, *lower: str) -> Part:
    """A part that is arithmetic."""
    return Part(process=process, what=what, likely=round(size), least=round(size), lower=lower)


def passing(process: str, what: str, size: float, *lower: str) -> Part:
    """A part that is not always there."""
    return Part(process=process, what=what, likely=round(size), least=0, lower=lower)


def has_adapter(config: RunConfig) -> bool:
    """Whether the model's own weights, its head among them, are frozen."""
    return config.adapter.rank is not None


def holds_reference(config: RunConfig) -> bool:
    """Whether the learner holds a reference policy that is a model of its own."""
    return config.divergence.coefficient > 0 and not has_adapter(config)


def training_parts(config: RunConfig, shape: ModelShape, row: RowSize, *, ranks: int, on_gpu: bool) -> list[Part]:
    """Of one process of the learner that has `ranks` of them, where its weights are."""
    held, computed = BYTES[config.model.dtype], BYTES[config.model.served_dtype]
    added = _num_added(config, shape)
    trained = ADAPTER_BYTES * added if has_adapter(config) else held * shape.num_weights
    fewer = _fewer_trained(config)
    weights = held * shape.num_weights + ADAPTER_BYTES * added
    parts = [
        exact("learner", "weights", weights / ranks, *_narrower(config)),
        exact("learner", "gradients", trained / ranks, *fewer),
        exact("learner", "AdamW's moments", 2 * trained / ranks, *fewer),
    ]
    if holds_reference(config):
        parts.append(exact("learner", REFERENCE, held * shape.num_weights / ranks, *fewer))
    if ranks > 1:
        parts.append(passing("learner", "weights made whole for a layer and the head", held * _largest_whole(shape)))
    if computed < held:
        parts.append(passing("learner", "weights in the type computed in", computed * shape.num_weights / ranks))
    recomputed = on_gpu if config.model.activation_checkpointing is None else config.model.activation_checkpointing
    activations = row.tokens * _bytes_per_token(config, shape, row, recomputed=recomputed) * SPARE
    parts.append(
        Part(
            process="learner",
            what=f"activations of a row of {row.tokens} tokens",
            likely=round(activations),
            least=round(activations * LEAST_ROW),
            lower=(ROW,) if recomputed else (ROW, RECOMPUTE),
        )
    )
    positions = min(row.tokens, TILE_POSITIONS, max(1, TILE // shape.vocabulary))
    gradient = 0 if has_adapter(config) else 2 * shape.vocabulary * shape.hidden
    head = 4 * (TILES * positions * shape.vocabulary + gradient)
    return [*parts, Part(process="learner", what="the head's logits", likely=head, least=round(head * LEAST_ROW))]


def engine_parts(config: RunConfig, shape: ModelShape, row: RowSize) -> list[Part]:
    """Of a generator that decodes itself."""
    size = BYTES[config.model.served_dtype]
    weights = exact("generator", "weights", size * shape.num_weights, *_narrower_served(config))
    kept = SPARE * row.in_flight * row.sequence * 2 * shape.keys * shape.layers * size
    logits = 3 * 4 * row.in_flight * shape.vocabulary
    fewer = (f"engine.batch_rollouts below {row.in_flight}",) if row.in_flight > 1 else ()
    return [weights, passing("generator", f"keys and values of {row.in_flight} rollouts", kept + logits, *fewer)]


def _num_added(config: RunConfig, shape: ModelShape) -> int:
    """Numbers of an adapter: two matrices beside each that it is for, and with DoRA the length of every output's row."""
    rank = config.adapter.rank
    if rank is None:
        return 0
    chosen = shape.adapted(config.adapter.targets)
    return sum(rank * (each.read + each.given) + (each.given if config.adapter.dora else 0) for each in chosen)


def _narrower(config: RunConfig) -> tuple[str, ...]:
    """The setting by which weights are held in fewer bytes, if one does."""
    if config.model.dtype != "float32":
        return ()
    instead = " instead of model.mixed_precision" if config.model.mixed_precision else ""
    return (f'model.dtype = "bfloat16"{instead}',)


def _narrower_served(config: RunConfig) -> tuple[str, ...]:
    """The same of weights that are served."""
    return () if config.model.served_dtype != "float32" else ('model.mixed_precision = "bfloat16"',)


def _fewer_trained(config: RunConfig) -> tuple[str, ...]:
    """Settings by which what is trained takes less."""
    rank = config.adapter.rank
    if rank is None:
        return (*_narrower(config), SMALL_MATRICES)
    return (f"adapter.rank below {rank}",) if rank > 1 else ()


def _largest_whole(shape: ModelShape) -> int:
    """Numbers of two layers, the next one being fetched while one computes, and of embedding and head."""
    return 2 * shape.num_weights // max(1, shape.layers) + 2 * shape.vocabulary * shape.hidden


def _bytes_per_token(config: RunConfig, shape: ModelShape, row: RowSize, *, recomputed: bool) -> float:
    """What is kept of a token until its backward pass.

    Of a layer: twice the residual stream and the two steps of its norm, in float32 whatever the layers are in; queries, and
    keys and values as often as they are gathered; attention's output, twice, and what its kernel keeps of both; four of the
    feed-forward part. Recomputed: what goes into each layer, and all of one.
    """
    held, computed = BYTES[config.model.dtype], BYTES[config.model.served_dtype]
    stream = {(4, 4): 24, (4, 2): 28, (2, 2): 20}[held, computed] * shape.hidden
    inside = computed * (5 * shape.queries + 2 * shape.keys * row.gathered + 4 * shape.inner)
    if recomputed:
        return shape.layers * held * shape.hidden + stream + inside
    return shape.layers * (stream + inside)
