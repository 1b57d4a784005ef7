"""The loss mask of a tokenizer's own chat template, by rendering prefixes of the conversation.

A template is a program: nothing says which part of its output belongs to which message. But where the ids of
a prompt are the first ids of the prompt with its answer, and those the first ids of the whole, what was added
is the answer. A template for which that does not hold (one that writes earlier turns differently once a later
one is there, say) cannot be masked so, and is refused.

What an answer added may end with more than the end of its turn, often a newline. The trained span ends with
the first of `end_ids` in it, which is where generation stops too; if none is in it, all of it is trained.

Here, unlike in ChatML by segments, text goes through the template whole: control tokens typed by a user are
control tokens.
"""

from collections.abc import Callable, Collection
from typing import Any

from posttrain.conversation.chatml import TrainOn, trained_turns, with_default_system
from posttrain.conversation.masks import TokenRow
from posttrain.conversation.messages import Conversation, Message
from posttrain.errors import DataError

Apply = Callable[[list[dict[str, Any]], bool], list[int]]
"""(messages, add_generation_prompt) → ids; tools, if any, are bound to it by the caller."""


def template_row(
    conversation: Conversation,
    apply: Apply,
    *,
    end_ids: Collection[int],
    default_system: str | None = None,
    train_on: TrainOn = "all",
) -> TokenRow:
    """The whole conversation as the template writes it; DataError where its prefixes do not agree."""
    conversation = with_default_system(conversation, default_system)
    messages = template_messages(conversation)
    whole = apply(messages, False)
    trained = [False] * len(whole)
    for index in sorted(trained_turns(conversation.messages, train_on)):
        if index == 0:
            raise DataError("messages[0]: a chat template cannot be masked for an answer without a prompt")
        prompt = apply(messages[:index], True)
        answered = apply(messages[: index + 1], False)
        _require_prefix(prompt, answered, f"the prompt of messages[{index}]", "prompt and answer together")
        _require_prefix(answered, whole, f"the conversation up to messages[{index}]", "the whole one")
        stop = _span_end(whole, len(prompt), len(answered), end_ids)
        trained[len(prompt) : stop] = [True] * (stop - len(prompt))
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


def _span_end(ids: list[int], start: int, stop: int, end_ids: Collection[int]) -> int:
    for position in range(start, stop):
        if ids[position] in end_ids:
            return position + 1
    return stop


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
