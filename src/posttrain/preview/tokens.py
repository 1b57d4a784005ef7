"""Give each token of a row its text and its tone: trained, context, or cut off."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from posttrain.base.text import on_one_line

Tone = Literal["trained", "context", "cut", "start"]
"""`trained`: its log-probability is part of the loss. `context`: read, not trained. `cut`: lost to truncation, never
seen. `start`: written after a prompt, for the model to continue."""

_REPLACED = "\N{REPLACEMENT CHARACTER}"
_LONGEST_CHARACTER = 4
"""Bytes of the longest character in UTF-8, and thus the most tokens that share one."""

_VISIBLE = {" ": "␠", "\n": "⏎\n", "\t": "⇥"}


@dataclass(frozen=True)
class Token:
    """A token as it is shown; `text` is empty for all but the last of the tokens that share one character."""

    id: int
    text: str
    tone: Tone


@dataclass(frozen=True)
class Side:
    """The tokens of a row, or of one of its answers.

    Attributes:
        remark: a few words next to the name, such as the number of tokens.
    """

    name: str
    tokens: Sequence[Token]
    remark: str = ""


def toned(
    tokenizer: Any, whole: Sequence[int], kept: Sequence[bool], *, cut_left: bool, dropped: bool = False
) -> list[Token]:
    """All tokens of a row, including those that were cut off.

    Args:
        whole: ids of the row before truncation.
        kept: for each token that is left, whether it is trained.
        cut_left: whether truncation cuts at the start of a row, rather than at its end.
        dropped: whether the row is not trained at all, so that all its tokens count as cut off.
    """
    tones: list[Tone] = ["trained" if trained else "context" for trained in kept]
    lost: list[Tone] = ["cut"] * (len(whole) - len(kept))
    tones = [*lost, *tones] if cut_left else [*tones, *lost]
    if dropped:
        tones = ["cut"] * len(whole)
    return [Token(*each) for each in zip(whole, pieces(tokenizer, whole), tones, strict=True)]


def pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text of each token, such that the texts joined are the text of the row.

    Several tokens may spell one character together; then the last of them gets it, and the others an empty text.
    """

    def text(first: int, end: int) -> str:
        shown = [int(token) for token in ids[first:end]]
        return tokenizer.decode(shown, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    found: list[str] = []
    before = start = 0  # decoding begins one token earlier: some decoders drop the blank before the first one
    for end in range(1, len(ids) + 1):
        context = text(before, start)
        new = text(before, end)
        is_part = new.endswith(_REPLACED) and end < len(ids) and end - start < _LONGEST_CHARACTER
        if is_part:
            found.append("")
            continue
        found.append(new[len(context) :] if new.startswith(context) else text(start, end))
        before, start = start, end
    return found


def visible(text: str) -> str:
    """The text with blanks, line breaks and control characters made visible; it cannot steer a terminal."""
    return "".join(_VISIBLE.get(char) or (char if char.isprintable() else repr(char)[1:-1]) for char in text)


def readable(text: str) -> str:
    """The text with its lines, but without other characters that could steer a terminal."""
    return "\n".join(map(on_one_line, text.split("\n")))


def label(token: Token, *, ids: bool) -> str:
    """The text of a token as it is shown, followed by its id if `ids`."""
    text = visible(token.text) or "⋯"
    if not ids:
        return text
    return f"{text.removesuffix(chr(10))}[{token.id}]{chr(10) * text.endswith(chr(10))}"
