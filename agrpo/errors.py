"""Every error agrpo raises on purpose, so that a caller can catch exactly what it can handle.

    AgrpoError
    |-- ConfigError            settings that cannot be run, all of them at once
    |   `-- UnknownName        a part that no file and no entry point provides
    |-- MissingPackage         an optional package is not installed
    |-- StoreError             the run folder cannot be read or written
    |   |-- StoreFull          no space left
    |   |-- StoreReadOnly      no right to write
    |   |-- StoreNotExclusive  the filesystem cannot create a file exactly once
    |   `-- StoreLostWrites    an object that was written is gone
    |-- RecordError            bytes that are not a record this version can read
    |   `-- RecordTooNew       a record of a later schema than this version knows
    |-- RunExists              a fresh run was asked for in a folder that holds one
    |-- RunBusy                another process is training the run
    |-- RunNotFound            no run answers to that name
    |-- RolloutNotFound        no recorded rollout answers to what was asked for
    |-- PromptError            the prompts of a run cannot be used
    |-- RewardError            a reward cannot be loaded, or may not go on failing
    |   `-- NoteRefused        a reward noted what cannot be recorded
    |-- ToolError              a tool cannot be loaded, its calls cannot be read, or it fails where it may not
    |-- EnvironmentFault       an environment cannot be used, or fails where it may not
    |   `-- UnfitEnvironment   what is there is no environment
    |-- FilterError            a filter of groups cannot be loaded, or fails
    |-- HookError              the run's rollout loop cannot be loaded, or one of its hooks fails
    |-- EngineError            the engine cannot complete or load
    |   |-- PromptRefused      the engine cannot take this prompt, whatever it does
    |   |-- StaleInFlight      a request's version has become too old to be trained
    |   |-- EngineLost         no server of the engine has been there for too long, or it is not the one that is needed
    |   `-- ProbeMismatch      the engine's weights are not the ones it was told to load
    |-- ModelError             the model cannot be trained as it is
    |-- CheckpointError        no checkpoint can be loaded
    |   |-- CheckpointMismatch a whole checkpoint that is not this run's
    |   `-- ReplayMismatch     a replayed step gave other weights than it had recorded
    |-- LearnerRankLost        a further process of the learner is gone or silent
    |-- Retired                a newer learner has taken over
    |-- Stopped                the run was asked to stop
    |-- DeadlineExceeded       a named wait took longer than it may
    |-- StageFailed            a stage's process ended with an error
    `-- DatabaseError          the run's database cannot be read
        `-- DatabaseBusy       another process kept it locked past the deadline

A message says what is wrong with its values, what was expected, and what to do.
"""

from __future__ import annotations


class AgrpoError(Exception):
    """Anything agrpo raises on purpose."""


class ConfigError(AgrpoError, ValueError):
    """One or more settings cannot be run. `problems` holds one sentence per setting."""

    def __init__(self, problems: list[str] | str) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class UnknownName(ConfigError):
    """A room has no part of that name."""


class MissingPackage(AgrpoError, ImportError):
    """An optional package is needed and not installed."""


class StoreError(AgrpoError, OSError):
    """The run folder cannot be read or written."""


class StoreFull(StoreError):
    """No space is left where the run is kept."""


class StoreReadOnly(StoreError):
    """The run folder may not be written."""


class StoreNotExclusive(StoreError):
    """The filesystem lets two writers create one file."""


class StoreLostWrites(StoreError):
    """An object whose writing was confirmed is gone."""


class RecordError(AgrpoError, ValueError):
    """Bytes that are not a record this version can read."""


class RecordTooNew(RecordError):
    """A record whose schema has a higher major version than this agrpo knows."""


class RunExists(AgrpoError, FileExistsError):
    """A fresh run was asked for in a folder that already holds one."""


class RunBusy(AgrpoError, RuntimeError):
    """A run was to be resumed that another living process is training."""


class RunNotFound(AgrpoError, FileNotFoundError):
    """No run answers to that name."""


class RolloutNotFound(AgrpoError, LookupError):
    """No recorded rollout, group or prompt is meant by what was asked for."""


class PromptError(AgrpoError, ValueError):
    """The prompts of a run cannot be used."""


class RewardError(AgrpoError, RuntimeError):
    """A reward cannot be loaded, or failed where it may not."""


class NoteRefused(RewardError):
    """A note of a reward cannot be recorded. The message is the reason, fit for the record."""


class ToolError(AgrpoError, RuntimeError):
    """A tool cannot be loaded, the model's calls cannot be read, or a call failed where it may not."""


class EnvironmentFault(AgrpoError, RuntimeError):
    """An environment cannot be loaded, or failed where it may not."""


class UnfitEnvironment(EnvironmentFault, TypeError):
    """A class lacks what every environment has, or has it otherwise."""


class FilterError(AgrpoError, RuntimeError):
    """A filter of groups cannot be loaded, failed, or gave what it may not."""


class HookError(AgrpoError, RuntimeError):
    """The run's rollout loop cannot be loaded, or one of its hooks failed or gave what it may not."""


class EngineError(AgrpoError, RuntimeError):
    """The engine cannot complete a request or load weights."""


class PromptRefused(EngineError):
    """A prompt that the engine can never complete, such as one longer than the model's positions."""


class StaleInFlight(EngineError):
    """A request was broken off, since the version it began under has become too old to be trained."""


class EngineLost(EngineError, ConnectionError):
    """No server of the engine has answered for longer than a run bears, or what answers is not what the run needs."""


class ProbeMismatch(EngineError):
    """An engine answers under other weights than it was told to load."""


class ModelError(AgrpoError, ValueError):
    """The model cannot be loaded, or cannot be trained as it is."""


class CheckpointError(AgrpoError, RuntimeError):
    """No checkpoint can be loaded."""


class CheckpointMismatch(CheckpointError):
    """A checkpoint that is whole, and of another run, another model or a later agrpo."""


class ReplayMismatch(CheckpointError):
    """A replayed step gave other weights than the step had recorded."""


class LearnerRankLost(AgrpoError, RuntimeError):
    """One of the processes that share the policy out among them has ended, or says nothing any more.

    `passing`: whether the learner may fare better when it is started again.
    """

    def __init__(self, message: str, *, passing: bool = True) -> None:
        super().__init__(message)
        self.passing = passing


class Retired(AgrpoError, RuntimeError):
    """A newer learner has taken over this run."""


class Stopped(AgrpoError, RuntimeError):
    """The run was asked to stop."""


class DeadlineExceeded(AgrpoError, TimeoutError):
    """A named wait took longer than it may."""


class StageFailed(AgrpoError, RuntimeError):
    """A stage's process ended with an error."""


class DatabaseError(AgrpoError, RuntimeError):
    """The run's database cannot be read."""


class DatabaseBusy(DatabaseError):
    """Another process kept the database locked past the deadline."""


def words_of(error: BaseException) -> str:
    """An exception as its kind and its text, whatever its own `__str__` does; a question mark for half a surrogate pair."""
    try:
        return f"{type(error).__name__}: {error}".encode("utf-8", "replace").decode("utf-8")
    except (Exception, SystemExit):
        return f"{type(error).__name__}: it has no words"
