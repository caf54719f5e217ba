"""What is settled once, when a run begins: how an adapter reaches the engine, whole or merged, and the type of weights."""

from __future__ import annotations

from agrpo.config import RunConfig, Settings
from agrpo.runs.dtypes import checkpoint_dtype


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


def settled(config: RunConfig) -> RunConfig:
    """The same settings with nothing left to be chosen, as `run.json` holds them."""
    tree = dict(config.settings.tree)
    if config.model.dtype == "auto":
        tree["model"] = {**tree["model"], "dtype": checkpoint_dtype(config.model) or "float32"}
    if config.adapter.rank is not None and config.adapter.publish == "auto":
        tree["adapter"] = {**tree["adapter"], "publish": adapter_publish(config)[0]}
    if tree == config.settings.tree:
        return config
    return RunConfig.build(Settings(tree=tree, origins=config.settings.origins))
