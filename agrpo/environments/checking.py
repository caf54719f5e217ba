"""What would keep a run's environments from working, found before anything starts: two instances of each are made."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agrpo.environments import ONLY, Kind, factories_of
from agrpo.environments.factories import kind_at, same_twice
from agrpo.errors import AgrpoError, EnvironmentFault, words_of
from agrpo.registry import nearest
from agrpo.tools.caller import Outcome

if TYPE_CHECKING:
    from agrpo.config import EnvironmentsSection

ROWS_NAMED = 5
"""Rows that a message names."""


def found_environments(section: EnvironmentsSection) -> tuple[dict[str, Kind], list[str]]:
    """Those that can be used, by the name with which rows pick them, and what is wrong with the others.

    It imports their modules and makes two instances of each.
    """
    kinds: dict[str, Kind] = {}
    problems: list[str] = []
    for name, own in factories_of(section).items():
        where = f"environments.factories.{name}" if name else "environments.factory"
        try:
            kind = kind_at(
                own.factory,
                lambda factory, path=own.factory: in_time(factory, f'making "{path}"', section.timeout_seconds),
                settings=own.settings,
            )
            problem = _odd_instances(kind, section.timeout_seconds)
        except (AgrpoError, ImportError) as error:
            problems.append(f"{where}: {error}")
            continue
        if problem is None:
            kinds[name] = kind
        else:
            problems.append(f"{where}: {problem}")
    return kinds, problems


def in_time(function: Callable[[], Any], what: str, seconds: float) -> Any:
    """What it returns. Raises `EnvironmentFault` after as many seconds, or with what it raised; agrpo's own errors as they are."""
    outcomes: list[Outcome] = []

    def work() -> None:
        try:
            outcomes.append(Outcome(value=function()))
        except BaseException as error:
            outcomes.append(Outcome(error=error))

    thread = threading.Thread(target=work, name=what, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcomes:
        raise EnvironmentFault(f"{what} did not return within {seconds:g} s (environments.timeout_seconds)")
    error = outcomes[0].error
    if isinstance(error, AgrpoError):
        raise error
    if error is not None:
        raise EnvironmentFault(f"{what} raised {words_of(error)}") from error
    return outcomes[0].value


def clashes(kinds: Mapping[str, Kind], functions: Collection[str], rewards: Sequence[str]) -> list[str]:
    """Names that could not be told apart. `functions`: the names of the run's tools; `rewards`: of its rewards."""
    problems = [
        f'tools.functions: "{tool}" is also a method of {kind.class_name}, and the model could not tell them apart; rename one'
        for kind in kinds.values()
        for tool in kind.tools
        if tool in functions
    ]
    classes: defaultdict[str, set[type[Any]]] = defaultdict(set)
    for kind in kinds.values():
        classes[kind.class_name].add(kind.cls)
    problems += [
        f'environments.factories: two classes are called "{name}", under which their rewards are told; rename one'
        for name, found in classes.items()
        if len(found) > 1
    ]
    problems += [
        f'rewards: "{name}" is also the name of an environment, and their values could not be told apart; rename one'
        for name in sorted({*rewards} & classes.keys())
    ]
    unpaid = sorted({kind.class_name for kind in kinds.values() if kind.reward_is_async is None})
    if unpaid and not rewards:
        problems.append(
            f"rewards: missing; {', '.join(unpaid)} {'has' if len(unpaid) == 1 else 'have'} no get_reward, and rollouts without "
            "a reward are never trained: write it, or add a [[rewards]] table"
        )
    return problems


def unfit_rows(
    rows: Mapping[int, Mapping[str, Any]], section: EnvironmentsSection, kinds: Mapping[str, Kind]
) -> list[str]:
    """What rows ask that their environments cannot give (A-258). `kinds`: those that could be loaded."""
    if not section.are_given:
        named = {index: str(row["environment"]) for index, row in rows.items() if row.get("environment") is not None}
        return [
            f'prompts: {told} name an environment ("{name}"), and the run has none; set environments.factories, or leave the '
            "column out"
            for name, told in _told(named)
        ]
    problems: list[str] = []
    known = list(section.factories)
    picked: dict[int, str] = {}
    unknown: dict[int, str] = {}
    for index, row in rows.items():
        name = row.get("environment")
        if section.factory is not None and name is None:
            picked[index] = ONLY
        elif name in section.factories:
            picked[index] = str(name)
        else:
            unknown[index] = "" if name is None else str(name)
    for name, told in _told(unknown):
        problems.append(f"prompts: {told} {_wrong_name(name, known)}")
    return problems + _missing_columns(rows, picked, kinds)


def _wrong_name(name: str, known: list[str]) -> str:
    if not known:
        return (
            f'name the environment "{name}", and the run has a single one (environments.factory); offer it as '
            f'environments.factories.{name}, or leave the column "environment" out'
        )
    if not name:
        return f'name no environment; each needs a column "environment" with one of: {", ".join(sorted(known))}'
    return f'name the environment "{name}", which environments.factories does not have; {nearest(name, known)}'


def _missing_columns(
    rows: Mapping[int, Mapping[str, Any]], picked: Mapping[int, str], kinds: Mapping[str, Kind]
) -> list[str]:
    missing: defaultdict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    for index, name in picked.items():
        for column in sorted(kinds[name].reset_needs - rows[index].keys()) if name in kinds else ():
            missing[name, column][index] = ""
    return [
        f'prompts: {told} lack the column "{column}", which {kinds[name].class_name}.reset needs; add it, or give the argument '
        "a default"
        for (name, column), found in missing.items()
        for _, told in _told(found)
    ]


def _told(found: Mapping[int, str]) -> list[tuple[str, str]]:
    """Each thing found, and the rows where it was."""
    by_name: defaultdict[str, list[int]] = defaultdict(list)
    for index, name in found.items():
        by_name[name].append(index)
    return [
        (
            name,
            f"rows {', '.join(map(str, own[:ROWS_NAMED]))}"
            + (f" and {len(own) - ROWS_NAMED} more" if len(own) > ROWS_NAMED else ""),
        )
        for name, own in by_name.items()
    ]


def _odd_instances(kind: Kind, seconds: float) -> str | None:
    made = [in_time(kind.factory, f"making {kind.class_name}", seconds) for _ in range(2)]
    other = next((one for one in made if not isinstance(one, kind.cls)), None)
    if other is not None:
        return f'"{kind.path}" made a {type(other).__name__} where it was to make a {kind.class_name}'
    return same_twice(kind) if made[0] is made[1] else None


__all__ = ["clashes", "found_environments", "in_time", "unfit_rows"]
