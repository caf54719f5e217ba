"""What is settled once, when a run begins: how an adapter reaches the engine, and the types of weights and arithmetic."""

from __future__ import annotations

from agrpo.config import RunConfig, Settings
from agrpo.config.amendments import Change
from agrpo.runs import memory
from agrpo.runs.dtypes import checkpoint_dtype

PRECISION = "model.mixed_precision"
ON_GPU = "settled: the learner trains on a GPU"
"""Origin of a setting that the machine decided."""


def adapter_publish(config: RunConfig) -> tuple[str, str]:
    """The form in which versions of an adapter are published, `merged` or `adapter`, and why."""
    adapter, engine = config.adapter, config.settings.tree["engine"]
    if adapter.publish != "auto":
        return adapter.publish, f'adapter.publish = "{adapter.publish}" says so'
    if not config.engine.takes_adapters:
        return "merged", f"the engine {engine['name']} takes whole weights alone"
    if adapter.dora:
        return "merged", f"the engine {engine['name']} cannot serve DoRA"
    if not engine.get("serve"):
        return "merged", "servers that the run does not start may have been started without adapters"
    return "adapter", "the run starts its own servers, and an adapter is a small part of the weights"


def adapter_sentence(settings: Settings) -> str | None:
    """What to tell of the adapter's way to the engine when a run begins; None: the run trains no adapter."""
    config = RunConfig.build(settings)
    if config.adapter.rank is None:
        return None
    form, reason = adapter_publish(config)
    return f"adapter: published {'merged' if form == 'merged' else 'by itself'}, since {reason}"


def precision_sentence(config: RunConfig) -> str | None:
    """What to tell of the arithmetic when a run begins; None: it is as the settings say."""
    if config.settings.origins.get(PRECISION) != ON_GPU:
        return None
    return (
        f'{PRECISION}: "bfloat16", since the learner trains on a GPU; weights stay in float32 beside it. Set "float32" to have '
        "everything in that type"
    )


def settled(config: RunConfig, machine: memory.Machine | None = None) -> RunConfig:
    """The same settings with nothing left to be chosen, as `run.json` holds them. `machine`: where it begins; None: here."""
    tree, origins = dict(config.settings.tree), dict(config.settings.origins)
    if config.model.dtype == "auto":
        tree["model"] = {**tree["model"], "dtype": checkpoint_dtype(config.model) or "float32"}
    elif _computes_in_bfloat16(config, machine):
        tree["model"] = {**tree["model"], "mixed_precision": "bfloat16"}
        origins[PRECISION] = ON_GPU
    if config.adapter.rank is not None and config.adapter.publish == "auto":
        tree["adapter"] = {**tree["adapter"], "publish": adapter_publish(config)[0]}
    if tree == config.settings.tree:
        return config
    return RunConfig.build(Settings(tree=tree, origins=origins))


def keeps_settled(change: Change, asked: Settings) -> bool:
    """Whether a resume asks for nothing else there: what its settings leave out stays as the run settled it."""
    if change.key != PRECISION:
        return False
    said = asked.tree["model"].get("mixed_precision")
    return said is None or {change.has, change.asked} == {None, "float32"}


def _computes_in_bfloat16(config: RunConfig, machine: memory.Machine | None) -> bool:
    model = config.model
    if model.mixed_precision is not None or model.dtype != "float32" or config.sampling.reproducible:
        return False
    return bool((machine or memory.machine_here()).gpus)
