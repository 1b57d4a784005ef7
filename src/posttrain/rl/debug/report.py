"""What `toolkit-rl-debug` prints."""

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table

from posttrain.base.console import console
from posttrain.dataserver.schemas import Component
from posttrain.rl.debug.findings import one_line, printable
from posttrain.rl.debug.groups import Group, Summary, all_completions, percentile, said_by_graders
from posttrain.rl.debug.markers import marker_counts, markers_in
from posttrain.rl.rollout.rollout import Rollout

# The beginning and the end of a longer text are shown: a completion's answer is at its end.
_SHOWN_CHARACTERS = 1200
_SHOWN_MARKERS = 12
_PERCENTS = (50, 90, 99)


def show_groups(groups: Sequence[Group]) -> None:
    """Every prompt and its completions, with their rewards."""
    for number, group in enumerate(groups, start=1):
        prompt = group.prompt
        console.print(
            f"\nprompt {number} of {len(groups)}: data set {prompt.dataset}, iteration {group.iteration}, slot "
            f"{prompt.slot}, sample {prompt.sample_id}, {len(prompt.ids)} tokens"
        )
        for message in group.sample.messages:
            console.print(_indented(f"{message.role}: {message.content}", 2))
        if prompt.is_too_long:
            console.print("  too long: nothing is generated for it")
            continue
        for place, completion in enumerate(group.completions, start=1):
            console.print(f"  {place}. {_facts(completion)}")
            console.print(_indented(completion.text or "(empty)", 5))
        console.print(f"  {group.different} different of {len(group.completions)} completions")


def show_summary(groups: Sequence[Group], summary: Summary, lengths: Sequence[int]) -> None:
    """The numbers of all groups, of each grader and of each marker, and how long prompts are."""
    console.print()
    console.print(_summary_table(summary), soft_wrap=False)
    if all_completions(groups):
        console.print(_grader_table(groups), soft_wrap=False)
    markers = marker_counts(groups)
    if markers:
        console.print(_marker_table(markers, summary.completions), soft_wrap=False)
    shares = ", ".join(f"{percent} % have at most {percentile(lengths, percent)}" for percent in _PERCENTS)
    console.print(f"tokens of {len(lengths)} prompts: {shares}, the longest has {max(lengths)}")


def show_findings(found: Sequence[str]) -> None:
    """The advice, a line each."""
    console.print("what stands out:" if found else "nothing stands out")
    for line in found:
        console.print(f"- {line}")


def _facts(completion: Rollout) -> str:
    result = completion.result
    reward = "none" if completion.reward is None else f"{completion.reward:.3f}"
    reason = f" ({result.status}: {one_line(result.reason)})" if result is not None and result.status != "ok" else ""
    scores = [_score(name, each) for name, each in result.components.items()] if result is not None else []
    markers = sorted(markers_in(completion.text))
    found = f"; has {', '.join(markers)}" if markers else ""
    cut = ", cut" if completion.was_cut else ""
    return f"reward {reward}{reason}, {completion.tokens} tokens{cut}; {', '.join(scores)}{found}"


def _score(name: str, component: Component) -> str:
    score = component.status if component.score is None else f"{component.score:.3g}"
    return f"{name} {score}{f' ({one_line(component.detail)})' if component.detail else ''}"


def _summary_table(summary: Summary) -> Table:
    table = _table("Completions", "", "")
    table.show_header = False
    rows = {
        "completions": str(summary.completions),
        "mean reward": _number(summary.reward),
        "standard deviation of rewards within a group": _number(summary.reward_std),
        "groups whose rewards are all equal": _share(summary.zero_variance_share),
        "could not be judged (abstain)": str(summary.abstained),
        "could not be graded (error)": str(summary.failed),
        "cut at max_new_tokens": _share(summary.truncated_share),
        "different texts within a group": _share(summary.distinct_share),
        "mean length in tokens": _number(summary.tokens, 1),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _grader_table(groups: Sequence[Group]) -> Table:
    table = _table("Graders", "", "mean", "lowest", "highest", "scored")
    for name, said in said_by_graders(groups).items():
        scores = [component.score for _, component in said if component.score is not None]
        values = [sum(scores) / len(scores), min(scores), max(scores)] if scores else [None] * 3
        table.add_row(name, *map(_number, values), f"{len(scores)} of {len(said)}")
    return table


def _marker_table(markers: Mapping[str, int], completions: int) -> Table:
    table = _table("Tags and marks", "", "in completions", "share")
    for marker, count in list(markers.items())[:_SHOWN_MARKERS]:
        table.add_row(marker, str(count), f"{count / completions:.0%}")
    if len(markers) > _SHOWN_MARKERS:
        table.caption = f"and {len(markers) - _SHOWN_MARKERS} more"
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left")
    return table


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _indented(text: str, width: int) -> str:
    shown = printable(text)
    if len(shown) > _SHOWN_CHARACTERS:
        half = _SHOWN_CHARACTERS // 2
        shown = f"{shown[:half]}\n[{len(shown) - 2 * half} characters left out]\n{shown[-half:]}"
    return "\n".join(" " * width + line for line in shown.split("\n"))
