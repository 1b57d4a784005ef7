"""Loss masks for a chat template, from markers and rendered prefixes, and its turn tokens.

A template is a program: without generation markers, nothing says which part of its output belongs to which message. An
answer begins where its prompt ends, so that training continues the same prompt as generation; a template that writes
another prompt once it is answered is refused.

By prefixes, the ids of the prompt and its answer must be a prefix of the whole conversation's ids: the ids after the
prompt are the answer. A template that writes something else after an answer when the conversation continues cannot be
masked in this way. By markers, the answer ends where the marked tokens end. If both give an answer, every token of it
must be marked, or the conversation is refused; if one does, that one counts.

Either way, an answer may contain more than the end of its turn, often a newline. The trained span ends with the first
of `end_ids` in it, where generation stops too. If none is marked, prefixes decide; if the answer found by prefixes has
none either, all of it is trained. A span in which a part of the message is missing is refused: many templates write no
reasoning or no tool calls.

Unlike in ChatML by segments, the rendered text is tokenised as a whole: control tokens typed by a user become control
tokens.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from posttrain.conversation.chatml import TrainOn, trained_turns, with_default_system
from posttrain.conversation.masks import TokenRow
from posttrain.conversation.messages import Conversation, Message
from posttrain.errors import DataError

Apply = Callable[[list[dict[str, Any]], bool], list[int]]
"""(messages, add_generation_prompt) → ids; the caller binds the tools, if any."""

# A tokenizer's files do not say which tokens end a turn: its eos may end a text but not a turn. But whatever follows
# two different answers alike comes from the template, and the first control token in it ends the answer's turn.
_ASKED = {"role": "user", "content": "a"}
_ANSWERS = ("b", "c d")


Marked = Callable[[list[dict[str, Any]], list[int]], Sequence[int]]
"""(messages, ids) → mask of the ids that markers enclose; empty if the template with markers writes other ids."""

Spelled = Callable[[str | Sequence[int]], str]
"""The text of ids, or of a text once it is encoded, without control tokens and white space."""


def template_row(  # how a template writes, and what of it is trained
    conversation: Conversation,
    apply: Apply,
    *,
    end_ids: Collection[int],
    default_system: str | None = None,
    train_on: TrainOn = "all",
    marked: Marked | None = None,
    spelled: Spelled | None = None,
) -> TokenRow:
    """Encode the whole conversation with the template.

    Raises:
        DataError: neither markers nor prefixes give its mask, they disagree, or a trained message is not there whole.
    """
    conversation = with_default_system(conversation, default_system)
    messages = template_messages(conversation)
    whole = apply(messages, False)
    marks = marked(messages, whole) if marked is not None else ()
    trained = [False] * len(whole)
    for index in sorted(trained_turns(conversation.messages, train_on)):
        if index == 0:
            raise DataError("messages[0]: a chat template cannot mask an answer without a prompt")
        prompt = apply(messages[:index], True)
        start, stop = len(prompt), None
        if whole[:start] == prompt:
            stop = _marked_stop(whole, marks, start, end_ids, goes_on=index + 1 < len(messages))
        try:
            answered = whole if index + 1 == len(messages) else apply(messages[: index + 1], False)
            by_prefixes = _prefix_stop(whole, prompt, answered, index, end_ids)
        except DataError:
            if stop is None:
                raise
        else:
            stop = by_prefixes
            if marks and not all(marks[start:stop]):
                raise DataError(
                    f"the template's generation markers leave out tokens of messages[{index}] that its prompt does "
                    "not have; correct the markers, or use template: chatml"
                )
        if spelled is not None:
            _require_all_there(conversation.messages[index], index, whole[start:stop], spelled)
        trained[start:stop] = [True] * (stop - start)
    return TokenRow(whole, trained)


def template_messages(conversation: Conversation) -> list[dict[str, Any]]:
    """The messages as the plain dicts that chat templates take."""
    return [_plain(message) for message in conversation.messages]


def _plain(message: Message) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name is not None:
        plain["name"] = message.name
    if message.reasoning is not None:
        plain["reasoning_content"] = message.reasoning
    if message.tool_calls:
        plain["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return plain


def _marked_stop(
    ids: list[int], marked: Sequence[int], start: int, end_ids: Collection[int], *, goes_on: bool
) -> int | None:
    """Where the marked tokens from `start` on end a turn; None if they do not, or cannot be relied on."""
    stop = start
    while stop < len(marked) and marked[stop]:
        stop += 1
    # If the end of a marker falls on no token, its mask extends to the end of the row, over other messages.
    if goes_on and stop == len(marked):
        return None
    return _span_end(ids, start, stop, end_ids)


def _prefix_stop(whole: list[int], prompt: list[int], answered: list[int], index: int, end_ids: Collection[int]) -> int:
    """Where the answer to `prompt` ends; DataError if the ids are not prefixes of each other."""
    _require_prefix(prompt, answered, f"the prompt of messages[{index}]", "the prompt with its answer")
    _require_prefix(answered, whole, f"the conversation up to messages[{index}]", "the complete one")
    return _span_end(whole, len(prompt), len(answered), end_ids) or len(answered)


def _require_all_there(message: Message, index: int, ids: Sequence[int], spelled: Spelled) -> None:
    """Raise DataError if the template did not write a part of a message: it would be trained without it."""
    written = spelled(ids)
    parts = [("content", message.content), ("reasoning", message.reasoning or "")]
    for what, part in [*parts, *(("call of a tool", call.name) for call in message.tool_calls)]:
        if "".join(part.split()) not in written and spelled(part) not in written:
            raise DataError(
                f"the chat template does not write the {what} of messages[{index}] as it is; leave that out of the "
                "data, or use template: chatml"
            )


def _span_end(ids: list[int], start: int, stop: int, end_ids: Collection[int]) -> int | None:
    """The position after the first end token in `ids[start:stop]`; None if there is none."""
    return next((position + 1 for position in range(start, stop) if ids[position] in end_ids), None)


def _require_prefix(prefix: list[int], ids: list[int], shorter: str, longer: str) -> None:
    if ids[: len(prefix)] == prefix:
        return
    pairs = enumerate(zip(prefix, ids, strict=False))
    position = next((at for at, (one, other) in pairs if one != other), min(len(prefix), len(ids)))
    one, other = (str(side[position]) if position < len(side) else "nothing" for side in (prefix, ids))
    raise DataError(
        f"this chat template cannot be masked by prefixes: {shorter} and {longer} differ at token {position} "
        f"(id {one} and id {other}); use template: chatml, or train_on: last if only earlier turns differ"
    )


@dataclass(frozen=True)
class TurnTokens:
    """Ids of the tokens that end an assistant turn, and of those that begin a turn of any role."""

    ends: frozenset[int]
    starts: frozenset[int]


def template_turns(apply: Apply, is_control: Callable[[int], bool]) -> TurnTokens:
    """The control tokens that `apply` writes between turns; none if it refuses plain conversations.

    If it ends an answer differently when the conversation continues, an answer may have several parts, and the token
    that begins a turn may also begin a part: then no token counts as a start. If it writes none after the last answer,
    the first one after an earlier answer begins the next turn.
    """
    ends = _behind_an_answer(apply, is_control)[:1]
    following = _behind_an_answer(apply, is_control, _ASKED)
    starts = []
    if following[: len(ends)] == ends:
        starts = following[len(ends) :][:1] + _opening(apply, is_control)[:1]
    return TurnTokens(frozenset(ends), frozenset(starts) - frozenset(ends))


def _behind_an_answer(apply: Apply, is_control: Callable[[int], bool], *following: dict[str, Any]) -> list[int]:
    """The control tokens after an answer, in order."""
    try:
        one, other = (
            apply([_ASKED, {"role": "assistant", "content": answer}, *following], False) for answer in _ANSWERS
        )
    except DataError:
        return []
    shared = _shared(reversed(one), reversed(other))
    return [token for token in reversed(shared) if is_control(token)]


def _opening(apply: Apply, is_control: Callable[[int], bool]) -> list[int]:
    """The control tokens of the generation prompt, in order."""
    try:
        asked, prompt = (apply([_ASKED], opened) for opened in (False, True))
    except DataError:
        return []
    return [token for token in prompt[len(_shared(asked, prompt)) :] if is_control(token)]


def _shared(one: Iterable[int], other: Iterable[int]) -> list[int]:
    """The common prefix of both."""
    return [here for here, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))]
