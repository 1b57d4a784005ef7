"""The curriculum over a run: what each stage draws, how often each data set is used up, and the first rows of steps."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from posttrain.data.curriculum.curriculum import Curriculum
from posttrain.preview.choose import first_steps
from posttrain.preview.rows import PreparedRows

_STEPS = 2
_ROWS = 4


@dataclass(frozen=True)
class Part:
    """A data set in a stage: its rows, its share of the stage, and how often it is used up before and after."""

    dataset: str
    rows: int
    share: float
    epochs_before: float
    epochs_after: float


@dataclass(frozen=True)
class Span:
    """A stage: its optimizer steps, counted from 1, and its data sets."""

    stage: str
    first: int
    last: int
    parts: tuple[Part, ...]

    @property
    def steps(self) -> int:
        """How many steps it lasts."""
        return self.last - self.first + 1


@dataclass(frozen=True)
class FirstRow:
    """One of the first rows of a step."""

    step: int
    stage: str
    place: str
    epoch: int
    tokens: int
    trained: int


def spans(curriculum: Curriculum, max_steps: int, datasets: Mapping[str, int]) -> list[Span]:
    """The stages up to `max_steps`; `datasets` are the rows of each data set."""
    found, start, drawn = [], 0, Counter[str]()
    for index, stage in enumerate(curriculum.stages):
        last = min(stage.until_step, max_steps)
        if last <= start:
            break
        rows = (
            curriculum.draws_per_dataset(index)
            if last == stage.until_step
            else Counter(draw.dataset for step in range(start, last) for draw in curriculum.step(step))
        )
        parts = []
        for dataset in stage.weights:
            count = rows.get(dataset, 0)
            before, after = drawn[dataset], drawn[dataset] + count
            size = datasets[dataset]
            parts.append(Part(dataset, count, count / sum(rows.values()), before / size, after / size))
            drawn[dataset] = after
        found.append(Span(stage.name, start + 1, last, tuple(part for part in parts if part.rows)))
        start = stage.until_step
    return found


def first_rows(curriculum: Curriculum, datasets: Mapping[str, PreparedRows], stage: str | None) -> Iterator[FirstRow]:
    """The first few rows of the first steps of each stage."""
    for step in first_steps(curriculum, stage, _STEPS):
        for slot in range(min(_ROWS, curriculum.rows_per_step)):
            draw = curriculum.draw(step, slot)
            rows = datasets[draw.dataset]
            place = f"{draw.dataset}:{int(rows.lines[draw.row])}"
            tokens, trained = int(rows.lengths[draw.row]), int(rows.trained[draw.row])
            yield FirstRow(step + 1, draw.stage, place, draw.epoch + 1, tokens, trained)
