"""Tags and other marks that graders look for: which there are, and what the tokenizer makes of them."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from posttrain.conversation.encoder import ConversationEncoder
from posttrain.inference.engine import decode
from posttrain.rl.debug.groups import Group, all_completions

_TAG = re.compile(r"</?[A-Za-z][\w.-]*>")
_MARKER = re.compile(rf"{_TAG.pattern}|<\|[^<>|\s]+\|>|\\boxed|####")


def markers_in(text: str) -> set[str]:
    """Tags, control tokens that were written out, `\\boxed` and `####`."""
    return set(_MARKER.findall(text))


def marker_counts(groups: Sequence[Group]) -> dict[str, int]:
    """In how many completions each marker stands, the most frequent first."""
    counts = Counter(marker for each in all_completions(groups) for marker in markers_in(each.text))
    return dict(counts.most_common())


def asked_markers(groups: Sequence[Group]) -> list[str]:
    """The markers that every prompt speaks of, so that they belong to the task and not to one of its questions.

    None where a single prompt leaves that open.
    """
    found = [markers_in(group.asked_text) for group in groups]
    return sorted(set.intersection(*found)) if len(found) > 1 else []


def marker_faults(groups: Sequence[Group], tokenizer: Any, encoder: ConversationEncoder) -> list[str]:
    """What keeps a marker of the task from the model, or from the graders; a sentence for each."""
    borders = {*encoder.end_ids, *encoder.start_ids, tokenizer.eos_token_id} - {None}
    ends = {decode(tokenizer, [token]) for token in borders}
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    shown = [decode(tokenizer, group.prompt.ids) for group in groups]
    faults, unwritten = [], []
    for marker in asked_markers(groups):
        if not all(marker in text for text in shown):
            faults.append(
                f"the prompts say {marker}, and it is not in what the model is shown: its chat template leaves it out; "
                "set chat.template: chatml"
            )
        elif marker in ends:
            faults.append(
                f"{marker} ends a completion and is taken off its text, so no grader ever sees it: take another tag, "
                "or a grader that does not want it"
            )
        elif marker in special and (pieces := _pieces(marker, groups[0], tokenizer)) > 1:
            faults.append(
                f"{marker} is a special token of the tokenizer, and prompts spell it by {pieces} ordinary ones, so the "
                "model may not see that it is meant: take another tag, or show it by SFT first"
            )
        elif marker not in marker_counts(groups):
            unwritten.append(marker)
    if unwritten and all_completions(groups):
        faults.append(
            f"every prompt speaks of {', '.join(unwritten)}, which no completion has: where a grader wants that, teach "
            "it by SFT first, or show an example in the prompt"
        )
    return faults


def _pieces(marker: str, group: Group, tokenizer: Any) -> int:
    """Of how many tokens a special token consists in a prompt: 1 where it stands there by its own id."""
    if tokenizer.convert_tokens_to_ids(marker) in group.prompt.ids:
        return 1
    return len(tokenizer(marker, add_special_tokens=False, split_special_tokens=True)["input_ids"])
