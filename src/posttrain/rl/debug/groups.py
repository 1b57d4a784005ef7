"""Groups of graded completions, their statistics, and a check for the markers that graders look for."""

import math
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.conversation.encoder import ConversationEncoder
from posttrain.dataserver.schemas import Component, Sample
from posttrain.inference.engine import decode
from posttrain.rl.rollout.rollout import Prompt, Rollout


@dataclass(frozen=True)
class Group:
    """A prompt and its completions; none if the prompt is too long.

    `iteration` is the dataserver iteration whose grader weights and gates determine the rewards.
    """

    iteration: int
    prompt: Prompt
    sample: Sample
    completions: tuple[Rollout, ...]

    @property
    def rewards(self) -> list[float]:
        """The rewards of the completions that have one."""
        return [each.reward for each in self.completions if each.reward is not None]

    @property
    def different(self) -> int:
        """Number of distinct completion texts."""
        return len({each.text for each in self.completions})

    @property
    def is_alike(self) -> bool:
        """Whether there are several completions and all have the same text."""
        return len(self.completions) > 1 and self.different == 1

    @property
    def asked_text(self) -> str:
        """All messages of the prompt."""
        return "\n".join(message.content for message in self.sample.messages)


@dataclass(frozen=True)
class Summary:
    """Means over the completions; None if there is nothing to average.

    Attributes:
        reward: over the completions that have one.
        reward_std: mean over the groups of the standard deviation within a group (over n − 1, as in TRL).
        zero_variance_share: share of groups whose rewards are all equal, among those with two or more rewards.
        distinct_share: distinct texts within the groups, as a share of all completions.
        tokens: mean length.
    """

    completions: int
    reward: float | None
    reward_std: float | None
    zero_variance_share: float | None
    abstained: int
    failed: int
    truncated_share: float | None
    distinct_share: float | None
    tokens: float | None


def summarise(groups: Sequence[Group]) -> Summary:
    """The numbers of all groups together."""
    completions = all_completions(groups)
    judged = [group.rewards for group in groups if len(group.rewards) > 1]
    statuses = [each.result.status for each in completions if each.result is not None]
    return Summary(
        completions=len(completions),
        reward=_mean([reward for group in groups for reward in group.rewards]),
        reward_std=_mean([statistics.stdev(rewards) for rewards in judged]),
        zero_variance_share=_mean([float(len(set(rewards)) == 1) for rewards in judged]),
        abstained=statuses.count("abstain"),
        failed=statuses.count("error"),
        truncated_share=_mean([float(each.was_cut) for each in completions]),
        distinct_share=sum(group.different for group in groups) / len(completions) if completions else None,
        tokens=_mean([float(each.tokens) for each in completions]),
    )


def all_completions(groups: Sequence[Group]) -> list[Rollout]:
    """The completions of all groups, in order."""
    return [each for group in groups for each in group.completions]


def said_by_graders(groups: Sequence[Group]) -> dict[str, list[tuple[Rollout, Component]]]:
    """For each grader, by name: its results, each with the completion it is about."""
    said: dict[str, list[tuple[Rollout, Component]]] = {}
    for each in all_completions(groups):
        for name, component in each.result.components.items() if each.result is not None else ():
            said.setdefault(name, []).append((each, component))
    return said


def percentile(values: Sequence[int], percent: float) -> int:
    """The smallest value that at least `percent` % of the values do not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


_TAG = re.compile(r"</?[A-Za-z][\w.-]*>")
_MARKER = re.compile(rf"{_TAG.pattern}|<\|[^<>|\s]+\|>|\\boxed|####")


def markers_in(text: str) -> set[str]:
    """The tags, written-out control tokens, `\\boxed` and `####` in a text."""
    return set(_MARKER.findall(text))


def marker_counts(groups: Sequence[Group]) -> dict[str, int]:
    """Number of completions that contain each marker, most frequent first."""
    counts = Counter(marker for each in all_completions(groups) for marker in markers_in(each.text))
    return dict(counts.most_common())


def asked_markers(groups: Sequence[Group]) -> list[str]:
    """The markers that every prompt mentions, so that they belong to the task and not to one of its questions.

    Empty for a single prompt, which leaves that open.
    """
    found = [markers_in(group.asked_text) for group in groups]
    return sorted(set.intersection(*found)) if len(found) > 1 else []


def marker_faults(groups: Sequence[Group], tokenizer: Any, encoder: ConversationEncoder) -> list[str]:
    """What keeps a marker of the task from the model or from the graders, one sentence each."""
    borders = {*encoder.end_ids, *encoder.start_ids, tokenizer.eos_token_id} - {None}
    ends = {decode(tokenizer, [token]) for token in borders}
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    shown = [decode(tokenizer, group.prompt.ids) for group in groups]
    faults, unwritten = [], []
    for marker in asked_markers(groups):
        if not all(marker in text for text in shown):
            faults.append(
                f"the prompts contain {marker}, but the model does not see it: its chat template leaves it out; "
                "set chat.template: chatml"
            )
        elif marker in ends:
            faults.append(
                f"{marker} ends a completion and is removed from its text, so no grader ever sees it: use another tag, "
                "or a grader that does not need it"
            )
        elif marker in special and (pieces := _pieces(marker, groups[0], tokenizer)) > 1:
            faults.append(
                f"{marker} is a special token of the tokenizer, but prompts spell it with {pieces} ordinary tokens, so "
                "the model may not recognise it: use another tag, or teach it by SFT first"
            )
        elif marker not in marker_counts(groups):
            unwritten.append(marker)
    if unwritten and all_completions(groups):
        faults.append(
            f"every prompt mentions {', '.join(unwritten)}, which no completion contains: if a grader requires that, "
            "teach it by SFT first, or show an example in the prompt"
        )
    return faults


def _pieces(marker: str, group: Group, tokenizer: Any) -> int:
    """Number of tokens that spell a special token in a prompt: 1 if the prompt contains its own id."""
    if tokenizer.convert_tokens_to_ids(marker) in group.prompt.ids:
        return 1
    return len(tokenizer(marker, add_special_tokens=False, split_special_tokens=True)["input_ids"])
