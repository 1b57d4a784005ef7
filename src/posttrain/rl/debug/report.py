"""Print completions, statistics and findings of `toolkit-rl-debug`."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from posttrain.base.console import console, new_table
from posttrain.config.sections.generation import SamplingConfig
from posttrain.dataserver.schemas import Component
from posttrain.rl.config import RolloutConfig
from posttrain.rl.debug.groups import (
    Group,
    Summary,
    all_completions,
    marker_counts,
    markers_in,
    percentile,
    said_by_graders,
    summarise,
)
from posttrain.rl.debug.verdicts import Verdicts, told_verdict
from posttrain.rl.rollout.rollout import Rollout
from posttrain.rl.watchdogs import NEVER_ENDS, why_equal

# Of longer texts the beginning and the end are shown: a completion's answer is at its end.
_SHOWN_CHARACTERS = 1200
_SHOWN_MARKERS = 12
_PERCENTS = (50, 90, 99)


def show_groups(groups: Sequence[Group], verdicts: Verdicts | None) -> None:
    """Print every prompt with its completions, their rewards, and the filters' verdict if there are filters."""
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
        console.print(f"  {group.different} of {len(group.completions)} completions are distinct")
        if verdicts is not None:
            console.print(f"  {told_verdict(verdicts[number - 1])}")


def show_summary(groups: Sequence[Group], summary: Summary, lengths: Sequence[int]) -> None:
    """Print the numbers of all groups, of each grader and of each marker, and how long prompts are."""
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
    """Print the findings, one line each."""
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
    table = new_table("Completions", "", "")
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
    table = new_table("Graders", "", "mean", "lowest", "highest", "scored")
    for name, said in said_by_graders(groups).items():
        scores = [component.score for _, component in said if component.score is not None]
        values = [sum(scores) / len(scores), min(scores), max(scores)] if scores else [None] * 3
        table.add_row(name, *map(_number, values), f"{len(scores)} of {len(said)}")
    return table


def _marker_table(markers: Mapping[str, int], completions: int) -> Table:
    table = new_table("Tags and markers", "", "in completions", "share")
    for marker, count in list(markers.items())[:_SHOWN_MARKERS]:
        table.add_row(marker, str(count), f"{count / completions:.0%}")
    if len(markers) > _SHOWN_MARKERS:
        table.caption = f"and {len(markers) - _SHOWN_MARKERS} more"
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


# Fewer scores than this do not show that a grader always gives the same one.
_FEWEST_SCORES = 4
# Above this share of completions, being cut is the rule and not the exception.
_MOST = 0.5
# The max_prompt_tokens that is suggested fits this percentage of the prompts.
_PERCENT_TAKEN = 99
_QUOTED_CHARACTERS = 120


def findings(groups: Sequence[Group], lengths: Sequence[int], rollout: RolloutConfig) -> list[str]:
    """Everything that stands out; empty if nothing does.

    Args:
        lengths: lengths of many prompts of the curriculum, in tokens.
        rollout: how the completions were sampled.
    """
    sampling = rollout.at(groups[0].iteration if groups else 0)
    return [
        *_prompts_too_long(lengths, rollout.max_prompt_tokens),
        *_alike(groups, sampling),
        *_truncated(groups, sampling.max_new_tokens),
        *_without_reward(groups),
        *_equal_rewards(groups),
        *_constant_graders(groups),
    ]


def one_line(text: str, limit: int = _QUOTED_CHARACTERS) -> str:
    """The text on one line, without characters that move a terminal's cursor; a long one without its middle."""
    line = " ⏎ ".join(printable(text).split("\n"))
    half = (limit - 3) // 2
    return line if len(line) <= limit else f"{line[:half]} … {line[-half:]}"


def printable(text: str) -> str:
    """The text with each unprintable character replaced by U+FFFD; line breaks stay."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "\ufffd" for letter in text)


def _prompts_too_long(lengths: Sequence[int], limit: int) -> Iterator[str]:
    longer = sum(length > limit for length in lengths)
    if longer:
        share = longer / len(lengths)
        yield (
            f"{longer} of {len(lengths)} prompts ({share:.0%}) are longer than rollout.max_prompt_tokens {limit} and "
            f"would be skipped: {percentile(lengths, _PERCENT_TAKEN)} fits {_PERCENT_TAKEN} % of them, "
            f"{max(lengths)} fits all"
        )


def _alike(groups: Sequence[Group], sampling: SamplingConfig) -> Iterator[str]:
    answered = [group for group in groups if len(group.completions) > 1]
    alike = [group for group in answered if group.is_alike]
    if not alike:
        return
    narrowed = [
        name
        for name, value, neutral in (
            ("top_p", sampling.top_p, 1.0),
            ("top_k", sampling.top_k, 0),
            ("min_p", sampling.min_p, 0.0),
        )
        if value != neutral
    ]
    besides = f", or leave out {', '.join(narrowed)}" if narrowed else ""
    yield (
        f"all completions of {len(alike)} of {len(answered)} prompts are alike, so none of them is better than "
        f"another: raise rollout.temperature (it is {sampling.temperature:g}){besides}"
    )


def _truncated(groups: Sequence[Group], limit: int) -> Iterator[str]:
    share = summarise(groups).truncated_share
    if share is not None and share > _MOST:
        yield (f"{share:.0%} of the completions were cut at rollout.max_new_tokens {limit}: raise it; {NEVER_ENDS}")


def _without_reward(groups: Sequence[Group]) -> Iterator[str]:
    completions = all_completions(groups)
    for status, told in (("abstain", "cannot be judged"), ("error", "could not be graded")):
        found = [each.result for each in completions if each.result is not None and each.result.status == status]
        if found:
            reason, count = Counter(result.reason for result in found).most_common(1)[0]
            yield (
                f"{len(found)} of {len(completions)} completions {told}, so they have no reward and teach nothing: "
                f"{one_line(reason)} ({count} times); check the grader or the gold answers"
            )


def _equal_rewards(groups: Sequence[Group]) -> Iterator[str]:
    judged = [group for group in groups if len(group.rewards) > 1]
    # Groups of identical completions have equal rewards anyway; `_alike` reports them.
    if not judged or any(len(set(group.rewards)) > 1 for group in judged) or all(group.is_alike for group in judged):
        return
    rewards = {reward for group in judged for reward in group.rewards}
    why = why_equal(rewards.pop() if len(rewards) == 1 else None)
    yield f"the rewards of every prompt are all equal, so there is nothing to learn: {why}"


def _constant_graders(groups: Sequence[Group]) -> Iterator[str]:
    for name, said in said_by_graders(groups).items():
        scored = [(completion, component) for completion, component in said if component.score is not None]
        scores = {component.score for _, component in scored}
        if len(scored) < _FEWEST_SCORES:
            continue
        gate = any(component.weight is None for _, component in scored)
        if scores == {0.0}:
            effect = ", and as a gate makes every reward 0" if gate else ""
            detail = Counter(component.detail for _, component in scored).most_common(1)[0][0]
            said_so = f" (it says: {one_line(detail)})" if detail else ""
            yield (
                f"the grader {name} gives 0 to all {len(scored)} completions{effect}{said_so}: if its format is "
                "never met, teach that by SFT first, or check what it looks for; one completion: "
                f"{_quoted([completion for completion, _ in scored])}"
            )
        elif scores == {1.0} and not gate:
            yield (
                f"the grader {name} gives 1 to all {len(scored)} completions, so it teaches nothing: make it "
                "stricter or leave it out, unless it is there as a guard"
            )


def _quoted(completions: Sequence[Rollout]) -> str:
    """The first completion that is not empty, preferably one that was not cut."""
    chosen = max(completions, key=lambda each: (bool(each.text.strip()), not each.was_cut))
    return one_line(chosen.text) or "(empty)"
