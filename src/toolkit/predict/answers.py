"""From records to generation requests, and from completions to lines of output."""

import hashlib
from collections.abc import Sequence
from typing import Any

from toolkit.core.conversation_encoder import ConversationEncoder
from toolkit.core.messages import Conversation
from toolkit.core.records import Record
from toolkit.core.template_masks import template_messages
from toolkit.inference.engine import Completion, GenerationRequest


def split_prompt(conversation: Conversation) -> tuple[Conversation, str | None]:
    """The conversation up to the answer that is asked for, and the answer that the data holds, if any."""
    *before, last = conversation.messages
    if last.role == "assistant" and before:
        return Conversation(tuple(before), conversation.tools), last.content
    return conversation, None


def build_requests(
    records: Sequence[Record], encoder: ConversationEncoder, *, n: int, seed: int
) -> list[GenerationRequest]:
    """One request for each record, with a seed that depends on (seed, row) alone."""
    prompts = encoder.prompts([split_prompt(record.conversation)[0] for record in records])
    return [
        GenerationRequest(tuple(prompt), n=n, seed=_row_seed(seed, record.index))
        for record, prompt in zip(records, prompts, strict=True)
    ]


def answer_line(
    record: Record, sample: int, completion: Completion, tokenizer: Any, end_ids: frozenset[int]
) -> dict[str, Any]:
    """One line of the output: the conversation with its new answer, ready to be trained on, and what is known of it."""
    prompt, reference = split_prompt(record.conversation)
    content = tokenizer.decode([token for token in completion.token_ids if token not in end_ids])
    line: dict[str, Any] = {
        "row": record.index,
        "sample": sample,
        "messages": [*template_messages(prompt), {"role": "assistant", "content": content}],
        "stop_reason": str(completion.stop_reason),
        "tokens": len(completion.token_ids),
    }
    if prompt.tools:
        line["tools"] = list(prompt.tools)
    if reference is not None:
        line["reference"] = reference
    if completion.logprobs is not None:
        line["logprobs"] = [round(value, 5) for value in completion.logprobs]
    return line


def _row_seed(seed: int, row: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed},{row}".encode(), digest_size=7).digest())
