"""Every path of the protocol, what it asks of the scheduler, and the faults that are set for it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.vllm_like import answers
from tests.vllm_like.bodies import Asked, Reader, Refusal, invalid
from tests.vllm_like.faults import Do, Fault, Faults
from tests.vllm_like.network import WorkerFailed
from tests.vllm_like.options import VERSION, Options
from tests.vllm_like.scheduler import EngineDead, Scheduler
from tests.vllm_like.sequence import Sequence
from tests.vllm_like.transfer import Transfer
from tests.vllm_like.wire import Answer, Request

GUARDED = ("/v1", "/v2", "/inference", "/cohere")
SCALE_OUT = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
PAGE = (
    b"<!doctype html><html><head><title>Welcome to nginx!</title></head><body><h1>Welcome to nginx!</h1></body></html>"
)
Route = Callable[[Request, Any], Awaitable[Answer]]


@dataclass(kw_only=True)
class Recorded:
    """One request, as it came."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    at: float = field(default_factory=time.monotonic)
    status: int | None = None
    """Of the answer. None: none was sent."""
    label: str = ""
    """Of the weights when it came."""


class Service:
    """One start of a server. A second one over the same faults and records is the same server, started again."""

    def __init__(self, path: Path, options: Options, faults: Faults, requests: list[Recorded]) -> None:
        self.options = options
        self.faults = faults
        self.requests = requests
        self.path = str(path)
        self.name = options.served_model_name or str(path)
        self.scheduler = Scheduler(path, options)
        network = self.scheduler.network
        self.reader = Reader(options, self.name, network.vocabulary, self.scheduler.max_model_len, network.adapters)
        self.transfer = Transfer(self.scheduler)
        self.dies = asyncio.Event()
        """Set by a fault: the server is to end at once."""
        self._tokenizer: Any = None
        self._routes = self._all_routes()

    async def handle(self, request: Request) -> Answer:
        """Record, look for a fault, answer."""
        body = _json(request.body)
        if request.path in ("/faults", "/requests"):
            return self._control(request, body)
        recorded = Recorded(
            method=request.method, path=request.path, query=request.query, body=body, label=self.scheduler.label
        )
        self.requests.append(recorded)
        fault = self.faults.meet(request.path, body)
        answer = await (self._answer(request, body) if fault is None else self._faulty(fault, request, body))
        recorded.status = None if answer.is_dropped else answer.status
        return answer

    async def _answer(self, request: Request, body: Any) -> Answer:
        key = self.options.api_key
        if key and request.path.startswith(GUARDED) and request.headers.get("authorization") != f"Bearer {key}":
            return Answer.of({"error": "Unauthorized"}, 401)
        methods = self._routes.get(request.path)
        if methods is None:
            return Answer.of({"detail": "Not Found"}, 404)
        if request.method not in methods:
            return Answer.of({"detail": "Method Not Allowed"}, 405)
        return await self._routed(methods[request.method], request, body)

    async def _routed(self, route: Route, request: Request, body: Any) -> Answer:
        try:
            if isinstance(body, _NoJson):
                raise invalid([("json_invalid", f"body.{body.place}", "JSON decode error")])
            return await route(request, body)
        except Refusal as refused:
            return Answer.of(answers.refusal(refused), refused.code)
        except WorkerFailed as failed:
            return Answer.of(answers.error(_worded(failed), "InternalServerError", 500), 500, closes=True)
        except EngineDead:
            text = "EngineCore encountered an issue. See stack trace (above) for the root cause."
            return Answer.of(answers.error(text, "InternalServerError", 500), 500)

    def _all_routes(self) -> dict[str, dict[str, Route]]:
        get: dict[str, Route] = {
            "/health": self._health,
            "/version": self._version,
            "/v1/models": self._models,
        }
        post: dict[str, Route] = {
            "/v1/completions": self._completions,
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
            "/inference/v1/generate": self._generate if self.options.enable_scale_out else self._disabled,
            "/inference/v1/abort_requests": self._abort_background if self.options.enable_scale_out else self._disabled,
        }
        if self.options.has_metrics:
            get["/metrics"] = self._metrics
        if self.options.runtime_lora_updating:
            post |= {"/v1/load_lora_adapter": self._load_lora, "/v1/unload_lora_adapter": self._unload_lora}
        if self.options.dev_mode:
            get |= {
                "/server_info": self._server_info,
                "/is_paused": self._is_paused,
                "/weight_info": self._weight_info,
                "/get_world_size": self._world_size,
            }
            post |= {
                "/pause": self._pause,
                "/resume": self._resume,
                "/abort_requests": self._abort,
                "/collective_rpc": self._collective_rpc,
                "/update_weight_version": self._update_weight_version,
                "/reset_prefix_cache": self._reset_prefix_cache,
                **{path: self._transfer for path in Transfer.PATHS},
            }
        routes: dict[str, dict[str, Route]] = {path: {"GET": route} for path, route in get.items()}
        return routes | {path: {"POST": route} for path, route in post.items()}

    def _control(self, request: Request, body: Any) -> Answer:
        if request.path == "/requests":
            return Answer.of([vars(recorded) for recorded in self.requests])
        if request.method == "POST":
            for document in body if isinstance(body, list) else [body]:
                self.faults.add(Fault.of(document))
        elif request.method == "DELETE":
            self.faults.clear()
        return Answer.of({})

    async def _faulty(self, fault: Fault, request: Request, body: Any) -> Answer:
        true = await self._answer(request, body) if fault.late else None
        match fault.do:
            case Do.HANG:
                await asyncio.Event().wait()
            case Do.DROP:
                return Answer(is_dropped=True)
            case Do.DIE:
                self.dies.set()
                return Answer(is_dropped=True)
            case Do.STATUS:
                kind = "BadRequestError" if fault.status < 500 else "InternalServerError"
                return Answer.of(answers.error(fault.text, kind, fault.status), fault.status)
            case Do.HTML:
                return Answer(status=fault.status, body=PAGE, content_type="text/html")
            case Do.DELAY:
                until = time.monotonic() + fault.seconds
                while time.monotonic() < until and self.faults.has(fault):
                    await asyncio.sleep(0.01)
            case Do.OLD_WEIGHTS:
                return Answer.of({"results": [None]})
            case _:
                pass
        return _spoilt(true or await self._answer(request, body), fault)

    async def _health(self, request: Request, body: Any) -> Answer:
        return Answer(status=503 if self.scheduler.died.is_set() else 200, content_type=None)

    async def _version(self, request: Request, body: Any) -> Answer:
        return Answer.of({"version": VERSION})

    async def _models(self, request: Request, body: Any) -> Answer:
        return Answer.of(answers.models(self.name, self.path, self.scheduler))

    async def _server_info(self, request: Request, body: Any) -> Answer:
        document = answers.server_info(self.name, self.path, self.scheduler)
        if request.query.get("config_format", "text") == "text":
            document["vllm_config"] = str(document["vllm_config"])
        return Answer.of(document)

    async def _metrics(self, request: Request, body: Any) -> Answer:
        text = answers.metrics(self.name, self.scheduler)
        return Answer(body=text.encode(), content_type="text/plain; version=1.0.0; charset=utf-8")

    async def _generate(self, request: Request, body: Any) -> Answer:
        asked = self.reader.generate(body or {}, f"{len(self.requests):016x}")
        return Answer.of(answers.generated(asked, await self._complete(asked), self.name, self.options))

    async def _completions(self, request: Request, body: Any) -> Answer:
        if isinstance(body, dict) and isinstance(body.get("prompt"), str):
            body = body | {"prompt": self.tokenizer.encode(body["prompt"])}
        asked = self.reader.completions(body or {}, f"{len(self.requests):016x}")
        return Answer.of(answers.completed(asked, await self._complete(asked), self.name, self.tokenizer.decode))

    async def _complete(self, asked: Asked) -> list[Sequence]:
        sequences = [
            Sequence(asked.request_id, index, asked.prompt, params, asked.adapter)
            for index, params in enumerate(asked.params)
        ]
        await self.scheduler.complete(sequences)
        return sequences

    async def _disabled(self, request: Request, body: Any) -> Answer:
        return Answer.of(answers.error(SCALE_OUT, "PermissionDeniedError", 403), 403)

    @property
    def tokenizer(self) -> Any:
        if self._tokenizer is None:
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(self.path)
        return self._tokenizer

    async def _tokenize(self, request: Request, body: Any) -> Answer:
        if "messages" in body:
            text = self.tokenizer.apply_chat_template(
                body["messages"], add_generation_prompt=body.get("add_generation_prompt", True), tokenize=False
            )
            ids = self.tokenizer.encode(text, add_special_tokens=body.get("add_special_tokens", False))
        else:
            ids = self.tokenizer.encode(body["prompt"], add_special_tokens=body.get("add_special_tokens", True))
        strings = self.tokenizer.convert_ids_to_tokens(ids) if body.get("return_token_strs") else None
        limit = self.scheduler.max_model_len
        return Answer.of({"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": strings})

    async def _detokenize(self, request: Request, body: Any) -> Answer:
        return Answer.of({"prompt": self.tokenizer.decode(body["tokens"])})

    async def _pause(self, request: Request, body: Any) -> Answer:
        mode = request.query.get("mode", "abort")
        if mode not in ("abort", "wait", "keep"):
            raise invalid([("literal_error", "query.mode", "Input should be 'abort', 'wait' or 'keep'")])
        clear = request.query.get("clear_cache", "true").lower() in ("true", "1", "yes", "on")
        await self.scheduler.pause(mode, clear_cache=clear)
        return Answer.of({"status": "paused"})

    async def _resume(self, request: Request, body: Any) -> Answer:
        self.scheduler.resume()
        return Answer.of({"status": "resumed"})

    async def _is_paused(self, request: Request, body: Any) -> Answer:
        return Answer.of({"is_paused": self.scheduler.paused})

    async def _weight_info(self, request: Request, body: Any) -> Answer:
        return Answer.of({"weight_version": self.scheduler.label})

    async def _world_size(self, request: Request, body: Any) -> Answer:
        return Answer.of({"world_size": 1})

    async def _update_weight_version(self, request: Request, body: Any) -> Answer:
        label = (body or {}).get("new_version")
        if not isinstance(label, str):
            raise invalid([("string_type", "body.new_version", "Input should be a valid string")])
        self.scheduler.label = label
        return Answer.of({"success": True, "new_version": label})

    async def _reset_prefix_cache(self, request: Request, body: Any) -> Answer:
        free = not self.scheduler.running
        if free:
            self.scheduler.prefixes.clear()
            self.scheduler.num_resets += 1
        return Answer.of({"success": free})

    async def _collective_rpc(self, request: Request, body: Any) -> Answer:
        method = (body or {}).get("method")
        if method is None:
            raise Refusal("Missing 'method' in request body", kind="Bad Request")
        if method != "reload_weights":
            raise WorkerFailed(f"'CPUWorker' object has no attribute '{method}'")
        self.scheduler.reload(body["kwargs"]["weights_path"])
        return Answer.of({"results": [None]})

    async def _transfer(self, request: Request, body: Any) -> Answer:
        return Answer.of({"message": self.transfer.take(request.path, body)})

    async def _abort(self, request: Request, body: Any) -> Answer:
        wanted = (body or {}).get("request_ids")
        number = self.scheduler.abort(wanted or None)
        return Answer.of({"status": "aborted", "aborted": len(wanted) if wanted else number})

    async def _abort_background(self, request: Request, body: Any) -> Answer:
        wanted = (body or {}).get("request_ids")
        if wanted is None:
            raise Refusal("Missing 'request_ids' in request body", kind="Bad Request")
        self.scheduler.abort(wanted)
        return Answer(content_type=None)

    async def _load_lora(self, request: Request, body: Any) -> Answer:
        _check_fields(body, "lora_name", "lora_path")
        name, path, known = body["lora_name"], body["lora_path"], self.scheduler.network.adapters
        if name == self.name:
            raise Refusal(f"The lora adapter '{name}' conflicts with a served base model.", kind="InvalidUserInput")
        if name in known and not body.get("load_inplace"):
            raise Refusal(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True.",
                kind="InvalidUserInput",
            )
        try:
            self.scheduler.add_adapter(name, path)
        except OSError:
            text = f"Loading lora {name} failed: No adapter found for {path}"
            raise Refusal(text, kind="NotFoundError", code=404) from None
        except WorkerFailed as failed:
            raise Refusal(_worded(failed, "add_lora"), kind="InternalServerError", code=500) from None
        return _text(f"Success: LoRA adapter '{name}' added successfully.")

    async def _unload_lora(self, request: Request, body: Any) -> Answer:
        _check_fields(body, "lora_name")
        name = body["lora_name"]
        if name not in self.scheduler.network.adapters:
            raise Refusal(f"The lora adapter '{name}' cannot be found.", kind="NotFoundError", code=404)
        self.scheduler.network.unload_adapter(name)
        return _text(f"Success: LoRA adapter '{name}' removed successfully.")


class _NoJson:
    def __init__(self, place: int) -> None:
        self.place = place


def _json(body: bytes) -> Any:
    if not body:
        return None
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        return _NoJson(error.pos)


def _check_fields(body: Any, *names: str) -> None:
    missing = [name for name in names if name not in (body or {})]
    if missing:
        raise invalid([("missing", f"body.{name}", "Field required") for name in missing])


def _text(text: str) -> Answer:
    return Answer(body=text.encode(), content_type=None)


def _worded(failed: WorkerFailed, method: str = "collective_rpc") -> str:
    """A worker's failure as its client hears of it."""
    return (
        f"Call to {method} method failed: Worker failed with error '{failed}', please check the stack trace above for the "
        "root cause"
    )


def _spoilt(answer: Answer, fault: Fault) -> Answer:
    """A true answer after a fault that changes it."""
    if fault.do is Do.HALF_JSON:
        return replace(answer, body=answer.body[: len(answer.body) // 2])
    if fault.do is Do.CUT:
        return replace(answer, is_cut=True)
    if fault.do is Do.DELAY or answer.status != 200:
        return answer
    document = json.loads(answer.body)
    if fault.change is not None:
        return answer.with_document(fault.change(document))
    if fault.do is Do.WITHOUT and fault.text in document:
        return answer.with_document({name: value for name, value in document.items() if name != fault.text})
    choices = document.get("choices", [document])
    if fault.do is Do.CHOICES:
        document["choices"] = [choices[0] | {"index": index} for index in range(fault.number)]
    for choice in choices:
        _spoil(choice, fault)
    return answer.with_document(document)


def _spoil(choice: dict[str, Any], fault: Fault) -> None:
    match fault.do:
        case Do.FEW_LOGPROBS if "content" in choice["logprobs"]:
            choice["logprobs"]["content"].pop()
        case Do.FEW_LOGPROBS:
            for name in ("token_logprobs", "tokens", "top_logprobs", "text_offset"):
                choice["logprobs"][name].pop()
        case Do.NO_LOGPROBS:
            choice["logprobs"] = None
        case Do.LABEL if "weight_version" in choice:
            choice["weight_version"] = fault.text
        case Do.LABEL:
            for span in choice["weight_versions"]:
                span["version"] = fault.text
        case Do.WITHOUT:
            del choice[fault.text]
        case _:
            pass
