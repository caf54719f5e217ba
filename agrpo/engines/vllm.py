"""Completions by vLLM servers over HTTP, tokens in and tokens out: the run's own servers, or ones that run elsewhere."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from agrpo.config import ModelSection
from agrpo.engines import Engine, Needs
from agrpo.registry import part

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
HERE = "http://localhost:8000"


def _root(url: str) -> str:
    """The URL, where it is one of a server's root."""
    if "://" not in url:
        raise ValueError(f"expected a URL; write http://{url}")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"expected http:// or https:// and a host, such as {HERE}")
    if parts.path.rstrip("/").endswith("/v1"):
        raise ValueError(f"a server is named by its root, without /v1; write {url.rstrip('/').removesuffix('/v1')}")
    return url


@part
class Vllm:
    """One generator drives all replicas: each request goes to the least loaded, and new weights to all of them.

    docs/vllm.md says how servers are started, and what each flag is needed for.
    """

    base_urls: list[Annotated[str, AfterValidator(_root)]] = field(default_factory=list)
    """Roots of servers that run elsewhere. None named, and no `serve`: http://localhost:8000."""
    serve: bool = False
    """The run starts its servers, watches them and starts them again."""
    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    """How many servers a run with `serve` starts."""
    environment: str | None = None
    """Folder of the virtual environment that has vLLM. None: the one in use, if it has it, else `.venv-vllm` beside it."""
    arguments: list[str] = field(default_factory=list)
    """Further arguments of the servers that the run starts, such as `--tensor-parallel-size=2`."""
    max_model_len: Annotated[int, Field(ge=2)] | None = None
    """Most tokens of a prompt and its completion in the servers that the run starts. None: what the model allows."""
    served_model: str | None = None
    """Name under which servers elsewhere serve the model. None: `model.path` as it is written."""
    api_key_variable: str | None = None
    """Environment variable that holds the key which the servers ask for."""
    start_seconds: Seconds = 1800.0
    """How long servers may take until they answer first."""
    outage_seconds: Seconds = 600.0
    """How long no server at all may answer before the run stops."""
    load_seconds: Seconds = 600.0
    """Of each phase of loading weights into a server: pause, load, resume."""
    weights: Literal["auto", "filesystem", "nccl"] = "auto"
    """How new weights reach the servers: as a folder that both sides see, or from the learner's GPU over NCCL. `auto`: over
    NCCL where the learner has a CUDA device and vLLM, and every server a weight_transfer_config with that backend."""

    can_reproduce: ClassVar[bool] = False
    needs_head: ClassVar[bool] = True
    takes_adapters: ClassVar[bool] = True

    def __call__(self, model: ModelSection, needs: Needs | None = None) -> Engine:
        from agrpo.engines.serving_vllm.engine import VllmEngine

        return VllmEngine(self, model, needs or Needs())

    def urls(self) -> list[str]:
        """Where the servers that run elsewhere answer."""
        return [url.rstrip("/") for url in self.base_urls] or [HERE]
