"""What is wrong with a task for the model that shall learn it, each in one line with what to do."""

from collections import Counter
from collections.abc import Iterator, Sequence

from posttrain.rl.config.rollout import RolloutConfig
from posttrain.rl.debug.groups import Group, all_completions, percentile, said_by_graders, summarise
from posttrain.rl.rollout.rollout import Rollout

# Fewer scores than this say nothing about what a grader always does.
_FEWEST_SCORES = 4
# From this share of the completions on, to be cut is the rule and not the exception.
_MOST = 0.5
# The advice on max_prompt_tokens is to take so many percent of the prompts.
_PERCENT_TAKEN = 99
_QUOTED_CHARACTERS = 120


def findings(groups: Sequence[Group], lengths: Sequence[int], rollout: RolloutConfig) -> list[str]:
    """Everything that stands out; empty where nothing does.

    Args:
        lengths: of many prompts of the curriculum, in tokens.
        rollout: how the completions were sampled.
    """
    return [
        *_prompts_too_long(lengths, rollout.max_prompt_tokens),
        *_alike(groups, rollout),
        *_truncated(groups, rollout.max_new_tokens),
        *_without_reward(groups),
        *_equal_rewards(groups),
        *_constant_graders(groups),
    ]


def one_line(text: str, limit: int = _QUOTED_CHARACTERS) -> str:
    """The text on a line, without what would move a terminal's cursor; the middle of a long one left out."""
    line = " ⏎ ".join(printable(text).split("\n"))
    half = (limit - 3) // 2
    return line if len(line) <= limit else f"{line[:half]} … {line[-half:]}"


def printable(text: str) -> str:
    """The text with each character that is none for the eye as U+FFFD; line breaks stay."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "\ufffd" for letter in text)


def _prompts_too_long(lengths: Sequence[int], limit: int) -> Iterator[str]:
    longer = sum(length > limit for length in lengths)
    if longer:
        share = longer / len(lengths)
        yield (
            f"{longer} of {len(lengths)} prompts ({share:.0%}) are longer than rollout.max_prompt_tokens {limit} and "
            f"would be passed over: {percentile(lengths, _PERCENT_TAKEN)} takes {_PERCENT_TAKEN} % of them, "
            f"{max(lengths)} takes all"
        )


def _alike(groups: Sequence[Group], rollout: RolloutConfig) -> Iterator[str]:
    answered = [group for group in groups if len(group.completions) > 1]
    alike = [group for group in answered if group.is_alike]
    if not alike:
        return
    narrowed = [
        name
        for name, value, neutral in (
            ("top_p", rollout.top_p, 1.0),
            ("top_k", rollout.top_k, 0),
            ("min_p", rollout.min_p, 0.0),
        )
        if value != neutral
    ]
    besides = f", or leave out {', '.join(narrowed)}" if narrowed else ""
    yield (
        f"all completions of {len(alike)} of {len(answered)} prompts are alike, so none of them is better than "
        f"another: raise rollout.temperature (it is {rollout.temperature:g}){besides}"
    )


def _truncated(groups: Sequence[Group], limit: int) -> Iterator[str]:
    share = summarise(groups).truncated_share
    if share is not None and share > _MOST:
        yield (
            f"{share:.0%} of the completions were cut at rollout.max_new_tokens {limit}: raise it; a model that never "
            "ends its turn has to learn that by SFT first"
        )


def _without_reward(groups: Sequence[Group]) -> Iterator[str]:
    completions = all_completions(groups)
    for status, told in (("abstain", "cannot be judged"), ("error", "could not be graded")):
        found = [each.result for each in completions if each.result is not None and each.result.status == status]
        if found:
            reason, count = Counter(result.reason for result in found).most_common(1)[0]
            yield (
                f"{len(found)} of {len(completions)} completions {told}, so they have no reward and teach nothing: "
                f"{one_line(reason)} ({count} times); see to the grader or to the gold answers"
            )


def _equal_rewards(groups: Sequence[Group]) -> Iterator[str]:
    judged = [group for group in groups if len(group.rewards) > 1]
    # Those that are alike have equal rewards by nature, which is told as that.
    if not judged or any(len(set(group.rewards)) > 1 for group in judged) or all(group.is_alike for group in judged):
        return
    rewards = {reward for group in judged for reward in group.rewards}
    if rewards == {0.0}:
        why = "all are 0, the task is too hard or a format is never met: begin with easier prompts, or with SFT"
    elif rewards == {1.0}:
        why = "all are 1, the task is too easy: take harder prompts"
    else:
        why = "take prompts that are solved now and then, or graders that tell good from better"
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
                f"the grader {name} gives 0 to all {len(scored)} completions{effect}{said_so}: if it is its format "
                f"that is never met, teach that by SFT first, or check what it looks for; one completion: "
                f"{_quoted([completion for completion, _ in scored])}"
            )
        elif scores == {1.0} and not gate:
            yield (
                f"the grader {name} gives 1 to all {len(scored)} completions, so it teaches nothing: make it "
                "stricter or leave it out, unless it is there as a guard"
            )


def _quoted(completions: Sequence[Rollout]) -> str:
    """The first of them that says anything, best one that is whole."""
    chosen = max(completions, key=lambda each: (bool(each.text.strip()), not each.was_cut))
    return one_line(chosen.text) or "(empty)"
