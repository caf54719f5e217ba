"""`agrpo whatif`: another reward or advantage over the rollouts of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from agrpo.cli.arguments import DirOption, RunArgument
from agrpo.cli.commands import Panel
from agrpo.cli.printing import print_rows, say

if TYPE_CHECKING:
    from agrpo.queue.run_folder import RunFolder
    from agrpo.whatif.question import Question
    from agrpo.whatif.summary import Summary

PANEL = Panel.ASK
MOST_REASONS = 3
"""Of failures, that are printed; the database has all of them."""


RewardOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="A reward of agrpo, or `package.module:function`, to judge every rollout by."),
]
AdvantageOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="An advantage to make of the recorded rewards, such as grpo.")
]
SetsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting of that reward or advantage, as in its table of a run file; may be repeated.",
    ),
]
KeepOption = Annotated[
    bool,
    typer.Option("--keep", help="Add the reward to the recorded ones. Without, it stands in the place of all of them."),
]
NameOption = Annotated[
    str | None, typer.Option(help="What to call it in the database. Default: after the reward or advantage.")
]
LimitOption = Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the newest N groups. Default: all.")]
PlainOption = Annotated[bool, typer.Option("--plain", help="Lines with tabs instead of tables.")]


def whatif(
    run: RunArgument,
    *,
    reward: RewardOption = None,
    advantage: AdvantageOption = None,
    sets: SetsOption = None,
    keep: KeepOption = False,
    name: NameOption = None,
    limit: LimitOption = None,
    plain: PlainOption = False,
    runs_dir: DirOption = "./runs",
) -> None:
    """Ask what another reward or advantage would have made of a run's rollouts.

    Nothing is generated or trained, and no fact changes. Every scored group is judged again, in the same killable processes
    and under the same limits as in a run, and laid beside what was recorded: whose advantages change sign, which groups
    would have been dropped, and which dropped ones trained.

    Example: agrpo whatif latest --reward my_rewards:shorter --limit 200

    Example: agrpo whatif latest --reward exact_match --set weight=0.5 --keep --name both

    Example: agrpo whatif latest --advantage grpo --set scale=none

    What comes of it is kept under its name in the run folder. Asked again it goes on where it was, also with groups that came
    since; under the same name with other settings it is refused.
    """
    from agrpo.runs import find
    from agrpo.whatif.asking import answered
    from agrpo.whatif.question import ask_advantage, ask_reward, begin
    from agrpo.whatif.summary import summarize

    _refuse_unclear(reward, advantage, keep)
    folder = find(run, runs_dir)
    if reward is not None:
        question = begin(folder, ask_reward(folder, reward, sets or [], keep=keep, name=name))
    else:
        question = begin(folder, ask_advantage(folder, advantage or "", sets or [], name=name))
    _answer(folder, question, limit)
    _print(folder, question, summarize(answered(folder, question.whatif.name)), plain)


def _refuse_unclear(reward: str | None, advantage: str | None, keep: bool) -> None:
    if (reward is None) == (advantage is None):
        raise typer.BadParameter("what if what? Give one of --reward NAME and --advantage NAME")
    if keep and reward is None:
        raise typer.BadParameter("--keep keeps recorded rewards beside another one; it goes with --reward")


def _answer(folder: RunFolder, question: Question, limit: int | None) -> None:
    from agrpo.cli.progress import progress
    from agrpo.whatif.asking import answer

    with progress() as tell:
        answer(folder, question, limit=limit, told=lambda done, total: tell(question.whatif.name, done, total))


def _print(folder: RunFolder, question: Question, found: Summary, plain: bool) -> None:
    asked = question.whatif
    say(
        f"what if {asked.kind} {asked.part}{' beside the recorded ones' if asked.keep else ''}: {found.num_groups:,} groups"
    )
    _table(["", "recorded", "what if"], _compared(found), plain)
    for sentence in _sentences(found):
        say(sentence)
    if found.examples:
        say("advantages that changed sign and moved furthest:")
        _table(["rollout", "reward", "what if", "advantage", "what if"], _examples(found), plain)
        first = found.examples[0]
        say(f"read one with: agrpo show {folder.url} {first.ticket}/{first.rollout.rollout_index}")
    say(
        f"in SQL, once recorded (agrpo record {folder.url}): "
        f"agrpo sql {folder.url} \"FROM whatif_rollouts WHERE whatif = '{asked.name}'\""
    )


def _compared(found: Summary) -> list[list[object]]:
    reasons = sorted(found.drops_before | found.drops)
    return [
        ["mean reward", found.reward_mean_before, found.reward_mean],
        *([f"groups dropped: {reason}", found.drops_before[reason], found.drops[reason]] for reason in reasons),
    ]


def _sentences(found: Summary) -> list[str]:
    lost, won = found.lost.total(), found.won.total()
    ranks = "no group has an order in both" if found.rank_correlation is None else (
        f"{found.rank_correlation:.3f}, the mean of {found.num_ranked:,} groups"
    )  # fmt: skip
    told = [
        f"{found.num_flipped_groups:,} of {found.num_groups:,} groups would have changed sign: "
        f"{found.num_flipped_rollouts:,} of {found.num_signed:,} rollouts whose advantage is not 0",
        f"{lost:,} groups would have been dropped that the recorded scores let through{_counted(found.lost)}",
        f"{won:,} groups could have been trained that the recorded scores drop{_counted(found.won)}",
        f"rewards that differ: {found.num_changed_rewards:,} of {found.num_rollouts:,} rollouts",
        f"rank correlation within groups: {ranks}",
    ]
    if found.errors:
        told.append(f"the reward failed on {found.errors.total():,} of {found.num_rollouts:,} rollouts, such as:")
        told += [f"  {count:,} x {reason}" for reason, count in found.errors.most_common(MOST_REASONS)]
    return told


def _counted(reasons: Counter[str]) -> str:
    return f": {', '.join(f'{reason} {count:,}' for reason, count in reasons.most_common())}" if reasons else ""


def _examples(found: Summary) -> list[list[object]]:
    return [
        [
            f"{flip.ticket}/{flip.rollout.rollout_index}",
            *(flip.rollout.reward_before, flip.rollout.reward),
            *(flip.rollout.advantage_before, flip.rollout.advantage),
        ]
        for flip in found.examples
    ]


def _table(names: Sequence[str], rows: Sequence[Sequence[object]], plain: bool) -> None:
    if not plain:
        print_rows(names, rows)
        return
    for row in [names, *rows]:
        say("\t".join("" if cell is None else f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in row))
