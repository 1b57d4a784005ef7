"""Renders the catalogue of graders in Markdown: what each one does, its parameters, and its examples."""

import inspect
import json
from collections.abc import Iterator, Sequence
from typing import Any

from config_reference import render_keys

from posttrain.base.text import on_one_line
from posttrain.dataserver.graders.base import Example, Grader
from posttrain.dataserver.graders.catalogue import built_in_graders

_LONGEST = 120

# A grader's input may contain line breaks and tabs, which a table cannot hold.
_VISIBLE = str.maketrans({"\n": "⏎", "\t": "⇥", "\r": "␍"})


def render_catalogue() -> str:
    """A list of all graders, then a section for each."""
    names: dict[type[Grader], list[str]] = {}
    for name, grader in built_in_graders().items():
        names.setdefault(grader, []).append(name)
    found = sorted(names.items(), key=lambda each: each[1][0])
    contents = [f"- [`{known[0]}`](#{known[0]}): {_first_line(grader)}" for grader, known in found]
    return "\n\n".join(["\n".join(contents), *(_section(grader, known) for grader, known in found)]) + "\n"


def _section(grader: type[Grader], names: Sequence[str]) -> str:
    parts = [f"## {names[0]}"]
    if names[1:]:
        parts.append(f"Also called {', '.join(f'`{name}`' for name in names[1:])}.")
    parts.append(inspect.getdoc(grader) or "")
    if needs := " and ".join(_needs(grader)):
        parts.append(f"It needs {needs}.")
    parts.append(render_keys(grader, without=("type",)))
    if grader.examples:
        parts.append("\n".join(_examples(grader.examples)))
    return "\n\n".join(parts)


def _needs(grader: type[Grader]) -> Iterator[str]:
    if grader.needs_gold:
        yield "a gold answer in every row"
    if grader.needs_tags:
        yield "the section `reasoning` of the data set"
    if grader.needs_code_execution:
        yield "`allow_code_execution: true`"


def _first_line(grader: type[Grader]) -> str:
    return " ".join((inspect.getdoc(grader) or "").split("\n\n")[0].split())


def _examples(examples: Sequence[Example]) -> Iterator[str]:
    yield "| completion | score | with | note |"
    yield "|---|---|---|---|"
    for example in examples:
        score = "abstains" if example.score is None else f"{example.score:.3g}"
        cells = [_code(example.completion), score, ", ".join(_given(example)), example.note]
        yield "|".join(["", *(f" {cell.replace('|', chr(92) + '|')} " if cell else " " for cell in cells), ""])


def _given(example: Example) -> Iterator[str]:
    """What the grader gets besides the completion."""
    if example.gold is not None:
        yield f"gold {_code(_json(example.gold))}"
    yield from (f"`{key}`: {_code(_json(value))}" for key, value in example.params.items())
    if example.record:
        yield f"row {_code(_json(example.record))}"
    if example.tags is not None:
        yield f"tags {_code(example.tags.open)} {_code(example.tags.close)}"
        if example.tags.opened_in_prompt:
            yield "opened in the prompt"
    if example.completion_tokens is not None:
        yield f"{example.completion_tokens} tokens"
    if example.truncated is not None:
        yield "cut off" if example.truncated else "not cut off"
    if example.prompt:
        yield f"asked {_code(example.prompt)}"


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=dict)


def _code(text: str) -> str:
    """A text between backticks, with every character visible."""
    if not text:
        return "(empty)"
    cut = f"{text[:_LONGEST]}… ({len(text):,} characters)" if len(text) > _LONGEST else text
    core = cut.strip(" ")
    left = len(cut) - len(cut.lstrip(" "))
    visible = "␣" * left + on_one_line(core.translate(_VISIBLE)) + "␣" * (len(cut) - left - len(core))
    fence = "`" * (_longest_run(visible) + 1)
    # A blank separates the text's own backticks from the fence.
    edge = " " if visible.startswith("`") or visible.endswith("`") else ""
    return f"{fence}{edge}{visible}{edge}{fence}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in "".join(c if c == "`" else " " for c in text).split()), default=0)
