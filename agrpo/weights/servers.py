"""A vLLM server as the learner sees it: the few calls that a transfer of weights is made of, each with a deadline."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from agrpo.errors import EngineError

LOOK_SECONDS = 20.0
"""For a word about itself; the first one has the server list its packages."""
LONGEST_TEXT = 500
"""Characters of a server's answer that an error repeats."""
FRESH = "default"
"""What a server calls weights that are no version of a run."""


class ServerFailed(EngineError):
    """A server did not do what was asked of it, or did not say so in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a server says of itself before a transfer."""

    instance: str
    """Names this one start of it: a server that was started again has forgotten its group."""
    backend: str | None
    """Of its `--weight-transfer-config`. None: it was started without."""
    gives_labels: bool
    """Whether it says under which weights each token was sampled (`--enable-scale-out`)."""
    num_workers: int


@dataclass(frozen=True, slots=True)
class Server:
    """One server by its root URL."""

    url: str
    api_key: str | None = None

    def standing(self) -> Standing:
        """How it was started. Raises `ServerFailed`."""
        told = self.ask("GET", "/server_info?config_format=json", None, LOOK_SECONDS)
        config = cast("dict[str, Any]", told["vllm_config"])
        size = self.ask("GET", "/get_world_size", None, LOOK_SECONDS)["world_size"]
        transfer = config.get("weight_transfer_config") or {}
        return Standing(
            instance=str(config.get("instance_id", "")),
            backend=transfer.get("backend"),
            gives_labels=self._opens_generate(),
            num_workers=int(size),
        )

    def label(self, seconds: float) -> str:
        """What it calls the weights it has."""
        return str(self.ask("GET", "/weight_info", None, seconds)["weight_version"])

    def pause(self, seconds: float) -> None:
        """Stop between two tokens. Requests wait, and go on under the weights that come."""
        self.ask("POST", "/pause?mode=keep", None, seconds)

    def resume(self, seconds: float) -> None:
        self.ask("POST", "/resume", None, seconds)

    def name(self, label: str, seconds: float) -> None:
        """Have it call its weights `label`."""
        self.ask("POST", "/update_weight_version", {"new_version": label}, seconds)

    def reload(self, folder: str, seconds: float) -> None:
        """Have it read a folder that it sees, while paused."""
        body = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
        self.ask("POST", "/collective_rpc", body, seconds)

    def address_here(self) -> str:
        """Under which address this machine is seen from there."""
        place = urlsplit(self.url)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards:
            towards.connect((place.hostname or "localhost", place.port or 80))
            return str(towards.getsockname()[0])

    def ask(self, method: str, path: str, body: Any, seconds: float) -> Any:
        """The JSON that it answers with. Raises `ServerFailed`, also where it is silent for so many seconds."""
        what, status, text = self._answer(method, path, body, seconds)
        if status >= http.client.BAD_REQUEST:
            raise ServerFailed(f"{what} answered {status}: {_short(_message(text))}")
        try:
            return json.loads(text)
        except ValueError:
            raise ServerFailed(f"{what} answered with something else than JSON: {_short(text)}") from None

    def _opens_generate(self) -> bool:
        """A request that is refused for what it says, and not for where it goes, finds the door open."""
        _, status, _ = self._answer("POST", "/inference/v1/generate", {"token_ids": []}, LOOK_SECONDS)
        return status not in (http.client.FORBIDDEN, http.client.NOT_FOUND, http.client.METHOD_NOT_ALLOWED)

    def _answer(self, method: str, path: str, body: Any, seconds: float) -> tuple[str, int, str]:
        """What was asked, and the status and text of the answer. A connection of its own each time."""
        place, what = urlsplit(self.url), f"{method} {self.url}{path}"
        kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
        connection = kind(place.hostname or "localhost", place.port, timeout=seconds)
        headers = {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        try:
            connection.request(method, place.path + path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return what, answer.status, answer.read().decode(errors="replace")
        except TimeoutError:
            raise ServerFailed(f"{what}: no answer within {seconds:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise ServerFailed(f"{what}: {type(error).__name__}: {error}") from None
        finally:
            connection.close()


def _message(text: str) -> str:
    """A server's own words, out of the JSON it wraps them in."""
    try:
        document = json.loads(text)
    except ValueError:
        return text
    error = cast("dict[str, Any]", document).get("error", document) if isinstance(document, dict) else document
    return str(cast("dict[str, Any]", error).get("message", error)) if isinstance(error, dict) else str(error)


def _short(text: str) -> str:
    folded = " ".join(text.split())
    return folded if len(folded) <= LONGEST_TEXT else f"{folded[:LONGEST_TEXT]}…"
