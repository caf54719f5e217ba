"""Whether the template that `model.chat_template` names fits the model: its family, the mark that ends its turns, its words."""

from __future__ import annotations

from agrpo.errors import PromptError
from agrpo.records.prompt import Message
from agrpo.stages.rendering import Renderer
from agrpo.templates import TEMPLATES

_QUESTION = "Aqueduct?"
_ASKED: Message = {"role": "user", "content": _QUESTION}
_SAID = "Bromeliad"
"""Words that no template writes."""
_SHOWN_CHARACTERS = 120


def unfit_template(name: str | None, renderer: Renderer) -> str | None:
    """What is wrong with `model.chat_template`, of which `renderer` was made. None: nothing."""
    if name is None:
        return None
    family = renderer.training_template()
    if name in TEMPLATES and family not in (name, None):
        return (
            f'model.chat_template: "{name}" is of another family than the tokenizer\'s own template, which belongs to "{family}"; '
            "set that one"
        )
    try:
        written = renderer.written([_ASKED])
        if _QUESTION not in written:
            shown = repr(written[:_SHOWN_CHARACTERS]) if written else "nothing"
            return (
                f'model.chat_template: "{name}" leaves messages out: of the question "{_QUESTION}" it made {shown}, so that every '
                "prompt would be alike; write each message's content, or name another file"
            )
        return _unended(name, renderer) if name in TEMPLATES else None
    except PromptError as error:
        return f"model.chat_template: {name}: {error}"


def _unended(name: str, renderer: Renderer) -> str | None:
    """A turn ends with a token that ends requests, else the model would be trained on a mark that is text to it."""
    said: Message = {"role": "assistant", "content": _SAID}
    end = renderer.written([_ASKED, said], asks=False).partition(_SAID)[2]
    stops = renderer.stop_texts()
    if any(end.startswith(stop) for stop in stops):
        return None
    return (
        f'model.chat_template: "{name}" ends a turn with {end.strip()}, at which the model does not stop; it stops at '
        f"{', '.join(sorted(stops))} (generation_config.json, and the tokenizer's EOS). Set the template of the model's own "
        "family, or leave the setting out"
    )


__all__ = ["unfit_template"]
