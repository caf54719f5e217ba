"""A reward model: a sequence classifier with one output, held by a process of its own.

It is what the documented `reward_funcs` means by the id of a model (G-011): loaded as a sequence classifier with
`num_labels = 1`, any other head refused (G-012). `path`, `revision`, `dtype` and `trust_remote_code` take what
`model_init_kwargs` says; `tokenizer` takes its entry of `reward_processing_classes`, None being the model's own (G-019);
a model that is an object has to be saved to a folder first (G-010).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from agrpo.classifiers import Source
from agrpo.classifiers.files import head_problems, length_problems, read_configuration
from agrpo.classifiers.tokenizer import concatenated, load_tokenizer, templated
from agrpo.errors import RewardError
from agrpo.records.group import RolloutGroup
from agrpo.records.prompt import Message
from agrpo.records.score import Unjudged
from agrpo.registry import part
from agrpo.rewards import Reward

if TYPE_CHECKING:
    from agrpo.classifiers.scoring import Classifier

Count = Annotated[int, Field(ge=1)]


@part
class RewardModel:
    """The logit that a sequence classifier gives the conversation, prompt and completion together.

    The model is loaded once and stays. Which texts share a batch depends on their group alone, so that the same group is
    given the same values again by the same machine.
    """

    path: Annotated[str, Field(min_length=1)]
    """Folder written by `save_pretrained`, or a hub id. A sequence classifier with one output."""
    revision: str | None = None
    """Branch, tag or commit of a hub id. None: the newest of the default branch."""
    tokenizer: Annotated[str, Field(min_length=1)] | None = None
    """Folder or hub id of another tokenizer. None: the model's own."""
    conversation: Literal["template", "concatenate"] = "template"
    """How messages become text: by the tokenizer's chat template, or their texts one behind the other, with the
    tokenizer's special tokens around."""
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Extra keywords of the chat template."""
    max_length: Count | None = None
    """Tokens of the longest text that is judged; none is cut. None: what model and tokenizer can take."""
    batch_size: Count = 8
    """Texts in one forward pass. With 1 a value has the same bits whatever group the text is in."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """In which the weights are held, and computed with."""
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")] = "cpu"
    """`cpu`, or a GPU as `cuda:1`: numbers count those that the run is started with."""
    threads: Count = 1
    """Of the CPU."""
    load_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 600.0
    """Most time to load the model, which no call's `timeout_seconds` counts."""
    trust_remote_code: bool = False
    """Run the Python code that the model's repository brings with it."""

    whole_group: ClassVar[bool] = False

    @property
    def source(self) -> Source:
        """Where its files are."""
        return Source(
            path=self.path,
            revision=self.revision,
            tokenizer=self.tokenizer,
            trust_remote_code=self.trust_remote_code,
        )

    @property
    def on_gpu(self) -> bool:
        """As for `Resident`."""
        return self.device != "cpu"

    def prepare(self) -> None:
        """Look at its files, without loading a weight. Raises `RewardError` for what could not be loaded, or is no such model."""
        try:
            document = read_configuration(self.source)
            problems = [*head_problems(self.source, document), *length_problems(self.max_length, document)]
            if problems:
                raise RewardError("; ".join(problems))
            tokenizer = load_tokenizer(self.source, needs_template=self._needs_template)
            if self._needs_template:
                _try_template(tokenizer, self.chat_template_kwargs)
        except RewardError as error:
            raise RewardError(f'reward "reward_model": {error}') from None

    def load(self) -> Reward:
        """As for `Resident`."""
        from agrpo.classifiers.scoring import load_classifier

        try:
            classifier = load_classifier(
                self.source,
                dtype=self.dtype,
                device=self.device,
                threads=self.threads,
                max_length=self.max_length,
                batch_size=self.batch_size,
                needs_template=self._needs_template,
            )
        except RewardError as error:
            raise RewardError(f'reward "reward_model": {error}') from None
        return _Loaded(self, classifier)

    def __call__(self, group: RolloutGroup) -> Sequence[float | Unjudged | None]:
        """One logit per rollout, or why there is none. The first call loads the model into this very process."""
        return self._loaded(group)

    @property
    def _needs_template(self) -> bool:
        return self.conversation == "template"

    @cached_property
    def _loaded(self) -> Reward:
        return self.load()


def _try_template(tokenizer: Any, extra: dict[str, Any]) -> None:
    """Write a question and its answer. Raises `RewardError` with the words of a template that cannot."""
    try:
        templated(tokenizer, [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}], extra)
    except Exception as error:  # a template raises what it likes
        raise RewardError(
            f"its chat template cannot write a question and its answer: {type(error).__name__}: {error}; mend it, change "
            'chat_template_kwargs, or set conversation = "concatenate"'
        ) from None


class _Loaded:
    """The reward with its model in memory."""

    whole_group: bool = False

    def __init__(self, reward: RewardModel, classifier: Classifier) -> None:
        self._reward = reward
        self._classifier = classifier

    def __call__(self, group: RolloutGroup) -> list[float | Unjudged]:
        """As for the reward."""
        turns = zip(group.prompts, group.completions, strict=True)
        texts = [self._text_of([*prompt, *completion]) for prompt, completion in turns]
        written = [text for text in texts if isinstance(text, str)]
        # A template writes the special tokens itself.
        scores = iter(self._classifier.scores(written, add_special_tokens=self._reward.conversation == "concatenate"))
        return [next(scores) if isinstance(text, str) else text for text in texts]

    def _text_of(self, conversation: Sequence[Message]) -> str | Unjudged:
        if self._reward.conversation == "concatenate":
            return concatenated(conversation)
        try:
            return templated(self._classifier.tokenizer, conversation, self._reward.chat_template_kwargs)
        except Exception as error:  # a template raises what it likes
            return Unjudged(f"the reward model's chat template cannot write it: {type(error).__name__}: {error}")
