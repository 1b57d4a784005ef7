"""The loss mask of a tokenizer's own chat template, by markers or by rendering prefixes, and its turn tokens.

A template is a program: unless it has generation markers, nothing says which part of its output belongs to which
message. An answer begins where the prompt that asks for it ends, so that what is trained is what is asked; a template
that writes another prompt once it is answered is refused. The end is that of the marked tokens.

Without markers, the ids of the prompt with its answer must be the first ids of the whole: what was added is the answer.
A template that writes something else behind an answer once the conversation goes on cannot be masked so.

Either way an answer may end with more than the end of its turn, often a newline. The trained span ends with the first
of `end_ids` in it, which is where generation stops too. If none is marked, prefixes decide; if none is in what was
added either, all of it is trained.

Here, unlike in ChatML by segments, text goes through the template whole: control tokens typed by a user are
control tokens.
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
"""(messages, add_generation_prompt) → ids; tools, if any, are bound to it by the caller."""

# Nothing in a tokenizer's files says which tokens end a turn: its eos may end a text and not a turn. But what stands
# behind two different answers alike is the template's, and the first control token in it ends the answer's turn.
_ASKED = {"role": "user", "content": "a"}
_ANSWERS = ("b", "c d")


@dataclass(frozen=True)
class Markers:
    """What the generation markers of a template say of a conversation; tools are bound to it by the caller."""

    marked: Callable[[list[dict[str, Any]], list[int]], Sequence[int]]
    """(messages, ids) → which of these ids they enclose; empty where the template with markers writes other ids."""

    decode: Callable[[Sequence[int]], str]


def template_row(
    conversation: Conversation,
    apply: Apply,
    *,
    end_ids: Collection[int],
    default_system: str | None = None,
    train_on: TrainOn = "all",
    markers: Markers | None = None,
) -> TokenRow:
    """The whole conversation as the template writes it; DataError where neither markers nor prefixes give its mask."""
    conversation = with_default_system(conversation, default_system)
    messages = template_messages(conversation)
    whole = apply(messages, False)
    marked = markers.marked(messages, whole) if markers is not None else ()
    trained = [False] * len(whole)
    for index in sorted(trained_turns(conversation.messages, train_on)):
        if index == 0:
            raise DataError("messages[0]: a chat template cannot be masked for an answer without a prompt")
        message, prompt = conversation.messages[index], apply(messages[:index], True)
        start, stop = len(prompt), None
        if whole[:start] == prompt:
            stop = _marked_stop(whole, marked, start, end_ids, goes_on=index + 1 < len(messages))
        if markers is None or stop is None or not _all_there(message, markers.decode(whole[start:stop])):
            answered = apply(messages[: index + 1], False)
            _require_prefix(prompt, answered, f"the prompt of messages[{index}]", "prompt and answer together")
            _require_prefix(answered, whole, f"the conversation up to messages[{index}]", "the whole one")
            stop = _span_end(whole, start, len(answered), end_ids) or len(answered)
        trained[start:stop] = [True] * (stop - start)
    return TokenRow(whole, trained)


def template_messages(conversation: Conversation) -> list[dict[str, Any]]:
    """The messages as the plain objects that chat templates take."""
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
    """Where the marked tokens that begin at `start` end a turn; None where they do not, or cannot be relied on."""
    stop = start
    while stop < len(marked) and marked[stop]:
        stop += 1
    # A mark whose end falls on no token is drawn out to the end of the row, over what others say.
    if goes_on and stop == len(marked):
        return None
    return _span_end(ids, start, stop, end_ids)


def _all_there(message: Message, written: str) -> bool:
    """Whether all that the message says is in `written`: markers enclose whatever a template left of it.

    How reasoning and calls are written differs by template, so that only prefixes show that these are there.
    """
    return not message.reasoning and not message.tool_calls and message.content.strip() in written


def _span_end(ids: list[int], start: int, stop: int, end_ids: Collection[int]) -> int | None:
    """Behind the first end token from `start` to `stop`."""
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
    """Ids of the tokens that end an assistant's turn, and of those that begin the next turn of anyone."""

    ends: frozenset[int]
    starts: frozenset[int]


def template_turns(apply: Apply, is_control: Callable[[int], bool]) -> TurnTokens:
    """What `apply` writes at the borders of turns; nothing where it refuses plain conversations.

    Where it ends an answer otherwise once the conversation goes on, an answer may have several parts, and the token
    that begins a turn may begin a part: then none counts as a start.
    """
    ends = _behind_an_answer(apply, is_control)[:1]
    following = _behind_an_answer(apply, is_control, _ASKED)
    starts = []
    if ends and following[:1] == ends:
        starts = following[1:2] + _opening(apply, is_control)[:1]
    return TurnTokens(frozenset(ends), frozenset(starts) - frozenset(ends))


def _behind_an_answer(apply: Apply, is_control: Callable[[int], bool], *following: dict[str, Any]) -> list[int]:
    """The control tokens behind an answer, in their order."""
    try:
        one, other = (
            apply([_ASKED, {"role": "assistant", "content": answer}, *following], False) for answer in _ANSWERS
        )
    except DataError:
        return []
    shared = _shared(reversed(one), reversed(other))
    return [token for token in reversed(shared) if is_control(token)]


def _opening(apply: Apply, is_control: Callable[[int], bool]) -> list[int]:
    """The control tokens that ask for an answer, in their order."""
    try:
        asked, prompt = (apply([_ASKED], opened) for opened in (False, True))
    except DataError:
        return []
    return [token for token in prompt[len(_shared(asked, prompt)) :] if is_control(token)]


def _shared(one: Iterable[int], other: Iterable[int]) -> list[int]:
    """The ids that both begin with."""
    return [here for here, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))]
