"""Render a conversation as ChatML: a list of segments, each with its kind and whether it is trained.

One turn is `<|im_start|>role\\ncontent<|im_end|>\\n`, cut into five segments: control `<|im_start|>`, header `role\\n`,
content, control `<|im_end|>`, header `\\n`. Segments are used rather than text, because text cannot tell a control
token from the same characters typed by a user, and because a prompt that ends at a segment boundary is tokenised
exactly as in training, whatever the answer starts with.

The content of assistant turns and their `<|im_end|>` are trained. Headers never are, nor is the newline after
`<|im_end|>`, since generation stops before it.

Tools, tool calls, tool results and reasoning are written as in the Qwen chat templates, byte for byte: tools in the
system turn (added if there is none, and then with no other content), a call as a `<tool_call>` block in the assistant's
content, consecutive results together in one user turn. JSON is always valid JSON. `reasoning` "" is written as an empty
block, None as no block, whereas Qwen3's template adds an empty block to a last turn without reasoning. With other tags
(`Tags`), those are written instead.

`content` is searched for tags only if there are some around solutions or in the prompt: an answer that was generated
with them has them in its content, and is then written as it was generated. One that was cut off within its reasoning
has no closing tag, so it is taken for an answer without reasoning.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from posttrain.conversation.messages import Conversation, Message, Role, ToolCall
from posttrain.errors import ConfigError, DataError

if TYPE_CHECKING:
    from posttrain.config.sections.chat import ChatConfig

IM_START = "<|im_start|>"
IM_END = "<|im_end|>"

TrainOn = Literal["last", "all"]
ReasoningHistory = Literal["keep", "drop"]

_TOOLS_BEFORE = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>"""

_TOOLS_AFTER = """
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> \
XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""


@dataclass(frozen=True, slots=True)
class Tags:
    """What is written around the reasoning and the content of an answer.

    Line breaks beside a tag that has some itself belong to the format, so that a parsed answer renders as it was
    sampled.
    """

    open: str = "<think>\n"
    close: str = "\n</think>\n\n"
    opened_in_prompt: bool = False
    solution_open: str = ""
    solution_close: str = ""

    @classmethod
    def of(cls, chat: "ChatConfig") -> "Tags":
        """The tags that a config names."""
        reasoning = {} if chat.reasoning_tags is None else chat.reasoning_tags.model_dump()
        solution = {} if chat.solution_tags is None else chat.solution_tags.model_dump()
        return cls(**reasoning, **{f"solution_{side}": tag for side, tag in solution.items()})

    def written(self, message: Message, *, with_reasoning: bool) -> str:
        """Reasoning and content of an assistant message."""
        content = message.content
        if self.solution_open and not message.tool_calls and self.solution_open not in content:
            content = self.solution_open + content + self.solution_close
        if message.reasoning is not None and with_reasoning:
            reasoning = message.reasoning.lstrip("\n") if self.open.endswith("\n") else message.reasoning
            reasoning = reasoning.rstrip("\n") if self.close.startswith("\n") else reasoning
            content = content.lstrip("\n") if self.close.endswith("\n") else content
            return self.open + reasoning + self.close + content
        was_opened_in_prompt = self.opened_in_prompt and self.close in content and self.open not in content
        return self.open + content if was_opened_in_prompt else content


QWEN = Tags()
"""`<think>` and `</think>` on lines of their own, and no tags around the content."""


class Kind(StrEnum):
    """The kind of a segment, which decides how it is tokenised."""

    CONTROL = "control"
    """One control token, looked up by id."""
    HEADER = "header"
    """Text that the format adds."""
    CONTENT = "content"
    """Text of the conversation; tokenising it never yields a control token."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a turn; `role` is that of the message, so it is "tool" where the header says user."""

    text: str
    kind: Kind
    role: Role
    trained: bool = False


def render(
    conversation: Conversation,
    *,
    default_system: str | None = None,
    train_on: TrainOn = "all",
    reasoning_history: ReasoningHistory = "keep",
    tags: Tags = QWEN,
) -> list[Segment]:
    """Render the whole conversation; `default_system` is added only if there is no system message.

    `reasoning_history="drop"` leaves out the reasoning of assistant turns before the last user message.

    Raises:
        ConfigError: that would remove the reasoning of a trained turn: the model would learn to answer without it.
        DataError: the prompt opens the reasoning, and a trained turn has none.
    """
    conversation = with_default_system(conversation, default_system)
    trained = trained_turns(conversation.messages, train_on)
    first_kept = _first_with_reasoning(conversation.messages, reasoning_history)
    for index in trained:
        if index < first_kept and conversation.messages[index].reasoning is not None:
            raise ConfigError(
                "reasoning_history: drop would train an earlier assistant turn without its reasoning; "
                "set it to keep, or train only turns after the last user message"
            )
    return _segments(conversation, trained, first_kept, tags)


def render_prompt(
    conversation: Conversation,
    *,
    default_system: str | None = None,
    reasoning_history: ReasoningHistory = "keep",
    tags: Tags = QWEN,
) -> list[Segment]:
    """Render all messages, then the start of the next assistant turn; nothing is trained.

    For a conversation without its last assistant message, these segments are the first ones of the whole conversation,
    apart from `trained`: the model is prompted with what it was trained to continue.
    """
    conversation = with_default_system(conversation, default_system)
    first_kept = _first_with_reasoning(conversation.messages, reasoning_history)
    segments = _segments(conversation, frozenset(), first_kept, tags)
    opened = [Segment(tags.open, Kind.HEADER, "assistant")] if tags.opened_in_prompt else []
    return [*segments, *_turn("assistant", "")[:2], *opened]


def text(segments: Iterable[Segment]) -> str:
    """The segments as text, for people and comparisons; models get ids."""
    return "".join(segment.text for segment in segments)


def with_default_system(conversation: Conversation, default_system: str | None) -> Conversation:
    """The conversation, with `default_system` first if one is given and it has no system message."""
    messages = conversation.messages
    if default_system is None or (messages and messages[0].role == "system"):
        return conversation
    return replace(conversation, messages=(Message("system", default_system), *messages))


def trained_turns(messages: tuple[Message, ...], train_on: TrainOn) -> frozenset[int]:
    """Indices of the trained assistant messages: all or the last, except those with `train` false."""
    turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
    chosen = turns[-1:] if train_on == "last" else turns
    return frozenset(index for index in chosen if messages[index].train)


def _first_with_reasoning(messages: tuple[Message, ...], reasoning_history: ReasoningHistory) -> int:
    """Index of the first message that keeps its reasoning: 0, or that of the last user message."""
    users = [index for index, message in enumerate(messages) if message.role == "user"]
    return users[-1] if users and reasoning_history == "drop" else 0


def _segments(conversation: Conversation, trained: frozenset[int], first_kept: int, tags: Tags) -> list[Segment]:
    messages = conversation.messages
    segments: list[Segment] = []
    if conversation.tools and not (messages and messages[0].role == "system"):
        segments += _turn("system", _tools_text(conversation.tools))
    for are_results, group in groupby(enumerate(messages), key=lambda item: item[1].role == "tool"):
        if are_results:
            segments += _turn("tool", "\n".join(_tool_response(message.content) for _, message in group))
            continue
        for index, message in group:
            content = message.content
            if message.role == "assistant":
                content = tags.written(message, with_reasoning=index >= first_kept) + _calls_text(message)
                if tags.opened_in_prompt and content.startswith(tags.open):
                    segments += _opened_turn(content, tags, trained=index in trained)
                    continue
                if tags.opened_in_prompt and index in trained:
                    raise DataError(
                        f"messages[{index}] has no reasoning, but chat.reasoning_tags.opened_in_prompt begins every "
                        "answer with it; give it reasoning_content, or leave opened_in_prompt out"
                    )
            elif index == 0 and message.role == "system" and conversation.tools:
                content += "\n\n" + _tools_text(conversation.tools)
            segments += _turn(message.role, content, trained=index in trained)
    return segments


def _turn(role: Role, content: str, trained: bool = False) -> list[Segment]:
    header = "user" if role == "tool" else role
    return [
        Segment(IM_START, Kind.CONTROL, role),
        Segment(f"{header}\n", Kind.HEADER, role),
        Segment(content, Kind.CONTENT, role, trained),
        Segment(IM_END, Kind.CONTROL, role, trained),
        Segment("\n", Kind.HEADER, role),
    ]


def _opened_turn(content: str, tags: Tags, *, trained: bool) -> list[Segment]:
    """An assistant's turn whose opening tag is a part of the prompt."""
    start, header, *rest = _turn("assistant", content.removeprefix(tags.open), trained)
    return [start, header, Segment(tags.open, Kind.HEADER, "assistant"), *rest]


def _calls_text(message: Message) -> str:
    calls = "\n".join(_tool_call(call) for call in message.tool_calls)
    return ("\n" if calls and message.content else "") + calls


def _tool_call(call: ToolCall) -> str:
    body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def _tool_response(content: str) -> str:
    return f"<tool_response>\n{content}\n</tool_response>"


def _tools_text(tools: tuple[dict, ...]) -> str:
    lines = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
    return _TOOLS_BEFORE + lines + _TOOLS_AFTER
