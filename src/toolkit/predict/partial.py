"""Answers on disk as they come, so that a killed run loses none and writes none twice.

`<output>.partial` starts with a line that says what is being answered by what; each further line is one answer.
At the end the answers are sorted and the finished file appears under its own name in one step.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from toolkit.core.files import atomic_write_text
from toolkit.errors import ConfigError

Key = tuple[int, int]
"""(row, sample)."""


class PartialOutput:
    """The answers to one input file so far.

    Raises:
        ConfigError: the output is there already, or the partial file belongs to another job.
    """

    def __init__(self, output: Path, job: dict[str, Any], *, overwrite: bool) -> None:
        self.output = output
        self._partial = output.with_name(output.name + ".partial")
        if overwrite:
            self._partial.unlink(missing_ok=True)
        elif output.exists():
            raise ConfigError(f"{output} is there already; choose another name, or replace it by --overwrite")
        self.answers: dict[Key, dict[str, Any]] = {}
        if self._partial.exists():
            self._read(job)
        else:
            self._partial.parent.mkdir(parents=True, exist_ok=True)
            atomic_write_text(self._partial, _line({"job": job}))

    def missing(self, keys: Iterable[Key]) -> list[Key]:
        """Those of `keys` that have no answer yet."""
        return [key for key in keys if key not in self.answers]

    def add(self, answers: Iterable[dict[str, Any]]) -> None:
        """Append answers, each with its `row` and `sample`; one that is there already is passed over."""
        with self._partial.open("a", encoding="utf-8") as file:
            for answer in answers:
                key = (answer["row"], answer["sample"])
                if key not in self.answers:
                    self.answers[key] = answer
                    file.write(_line(answer))

    def finish(self) -> None:
        """Put the answers, in the order of the input, under the output's own name."""
        atomic_write_text(self.output, "".join(_line(self.answers[key]) for key in sorted(self.answers)))
        self._partial.unlink()

    def _read(self, job: dict[str, Any]) -> None:
        lines = self._partial.read_bytes().split(b"\n")
        whole, torn = lines[:-1], lines[-1]
        if not whole or json.loads(whole[0]).get("job") != job:
            raise ConfigError(
                f"{self._partial} was begun with another model, input or sampling; "
                "delete it, or start over by --overwrite"
            )
        for line in whole[1:]:
            answer = json.loads(line)
            self.answers[answer["row"], answer["sample"]] = answer
        if torn:  # a kill in the middle of a line: what follows must start on a line of its own
            self._partial.write_bytes(b"\n".join(whole) + b"\n")


def _line(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"
