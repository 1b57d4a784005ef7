"""From rows to generation requests, and from completions to lines of output."""

from collections.abc import Sequence
from typing import Any

from posttrain.conversation.messages import Conversation
from posttrain.conversation.templates import template_messages
from posttrain.inference.engine import Completion, GenerationRequest
from posttrain.inference.seeds import derive_seed
from posttrain.predict.inputs import Row


def build_requests(
    rows: Sequence[Row], prompts: Sequence[Sequence[int]], *, n: int, seed: int
) -> list[GenerationRequest]:
    """One request for each row, with seeds that depend on the row's place and not on what its prompt is."""
    files = {source: number for number, source in enumerate(dict.fromkeys(row.source for row in rows))}
    return [
        GenerationRequest(
            tuple(prompt), tuple(derive_seed(seed, files[row.source], row.index, sample) for sample in range(n))
        )
        for row, prompt in zip(rows, prompts, strict=True)
    ]


def answer_line(row: Row, sample: int, completion: Completion, text: str) -> dict[str, Any]:
    """One line of the output: the conversation with its new answer, ready to be trained on, and what is known of it."""
    line: dict[str, Any] = {
        "file": row.source.name,
        "line": row.line,
        "row": row.index,
        "sample": sample,
        "messages": [*_plain_messages(row.prompt), {"role": "assistant", "content": text}],
        "stop_reason": str(completion.stop_reason),
        "tokens": len(completion.token_ids),
    }
    if row.prompt.tools:
        line["tools"] = list(row.prompt.tools)
    if row.reference is not None:
        line["reference"] = row.reference
    if completion.logprobs is not None:
        line["token_ids"] = list(completion.token_ids)
        line["logprobs"] = [round(value, 5) for value in completion.logprobs]
    return line


def _plain_messages(conversation: Conversation) -> list[dict[str, Any]]:
    """The messages as plain objects, with the mark on those answers that may not be trained."""
    plain = template_messages(conversation)
    for message, object_ in zip(conversation.messages, plain, strict=True):
        if not message.train:
            object_["train"] = False
    return plain
