"""From token ids back to text."""

from collections.abc import Sequence
from typing import Any

from posttrain.inference.engine import Completion, StopReason


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of `ids`, control tokens and all, with no blank taken away."""
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def completion_text(tokenizer: Any, completion: Completion, stop: Sequence[str]) -> str:
    """What was said: without the end token, and up to the first stop string."""
    ended = completion.stop_reason is StopReason.END
    text = decode(tokenizer, completion.token_ids[:-1] if ended else completion.token_ids)
    found = [position for string in stop if (position := text.find(string)) >= 0]
    return text[: min(found)] if found else text
