"""A server that speaks vLLM 0.32's protocol and really computes, with faults on demand.

    options    what a start command would have said
    network    a model, its adapters and reloads of its weights, with what a failed one leaves behind
    drawing    one token as vLLM draws it, and the log-probs it reports
    sequence   one completion in the making
    scheduler  requests, pauses, aborts, labels of weights, K/V blocks, the engine's death
    bodies     what a request may say, and what is refused
    answers    the JSON that is answered
    routes     paths
    faults     what goes wrong, when
    wire       HTTP
    server     all of it in a thread; `python -m tests.vllm_like` in a process

Shapes, status codes and texts are those of a real server's answers (tests/engines/test_vllm_like.py holds them).
"""

from __future__ import annotations

from tests.vllm_like.faults import Do, Fault
from tests.vllm_like.options import Options
from tests.vllm_like.server import Server

__all__ = ["Do", "Fault", "Options", "Server"]
