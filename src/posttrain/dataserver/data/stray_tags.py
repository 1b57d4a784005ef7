"""Remove stray tags, such as those around a model's reasoning, from the messages of a prompt."""

import re
from collections.abc import Collection
from dataclasses import replace

from posttrain.conversation.messages import Conversation, Message
from posttrain.errors import DataError


def without_tags(conversation: Conversation, names: Collection[str]) -> Conversation:
    """The conversation without the tags of these names; messages without any stay as they are.

    Of user, system and tool messages all text is kept. From assistant turns, what is between two tags is removed too:
    it is reasoning, not part of what was said.

    Raises:
        DataError: a user message has nothing but tags.
    """
    if not names:
        return conversation
    tags = re.compile(rf"<(?P<close>/?)(?P<name>{'|'.join(map(re.escape, names))})\s*/?>", re.IGNORECASE)
    return replace(conversation, messages=tuple(_without(message, tags) for message in conversation.messages))


def _without(message: Message, tags: re.Pattern[str]) -> Message:
    spans = _spans(message.content, tags, whole_blocks=message.role == "assistant")
    if not spans:
        return message
    ends = [0, *(end for _, end in spans)]
    starts = [*(start for start, _ in spans), len(message.content)]
    text = "".join(message.content[end:start] for end, start in zip(ends, starts, strict=True)).strip()
    if not text and message.role == "user":
        raise DataError("the prompt has a user message with nothing but tags (strip_tags)")
    return replace(message, content=text)


def _spans(text: str, tags: re.Pattern[str], *, whole_blocks: bool) -> list[tuple[int, int]]:
    """What to remove, in order: each tag, or from an opening tag to the next closing one of that name."""
    spans: list[tuple[int, int]] = []
    opened: tuple[str, int] | None = None  # the name of an open block, and the number of spans before it
    for tag in tags.finditer(text):
        name = tag["name"].lower()
        if not whole_blocks:
            pass
        elif opened is None and not tag["close"]:
            opened = (name, len(spans))
        elif opened is not None and tag["close"] and opened[0] == name:
            start = spans[opened[1]][0]
            del spans[opened[1] :]
            spans.append((start, tag.end()))
            opened = None
            continue
        spans.append(tag.span())
    return spans
