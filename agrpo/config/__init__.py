"""One run's settings: a TOML file whose tables are the parts of the run, resolved in layers that keep their origin.

    defaults  <  recipes  <  file  <  --set key=value

`resolve` gives `Settings` (plain values and where each came from); `RunConfig.build` checks them all, says everything
that is wrong at once, and builds the parts. Nothing here imports torch or touches a model, a dataset or a server.
"""

from __future__ import annotations

from agrpo.config.layers import Beneath, Beneaths, Settings, load_settings, resolve
from agrpo.config.run import PromptsSection, RunConfig
from agrpo.config.sections import (
    AdapterSection,
    AsyncSection,
    CheckpointSection,
    EnvironmentsSection,
    FactorySection,
    FilterSection,
    ModelSection,
    OptimizerSection,
    RecorderSection,
    RewardSection,
    RolloutLoopSection,
    RunSection,
    SamplingSection,
    StepSection,
    StopSection,
    StoreSection,
    SupervisionSection,
    ToolsSection,
    WorkersSection,
)

__all__ = [
    "AdapterSection",
    "AsyncSection",
    "Beneath",
    "Beneaths",
    "CheckpointSection",
    "EnvironmentsSection",
    "FactorySection",
    "FilterSection",
    "ModelSection",
    "OptimizerSection",
    "PromptsSection",
    "RecorderSection",
    "RewardSection",
    "RolloutLoopSection",
    "RunConfig",
    "RunSection",
    "SamplingSection",
    "Settings",
    "StepSection",
    "StopSection",
    "StoreSection",
    "SupervisionSection",
    "ToolsSection",
    "WorkersSection",
    "load_settings",
    "resolve",
]
