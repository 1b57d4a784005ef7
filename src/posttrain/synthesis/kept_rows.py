"""The rows of kept files, in the formats that toolkit-sft and toolkit-dpo read, and those of their controls."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.conversation.templates import template_messages
from posttrain.data.row_texts import prompt_text
from posttrain.inference.answering.rows import Row
from posttrain.synthesis.cleaning import repeated
from posttrain.synthesis.config import DedupConfig, KeptAnswers, KeptPairs
from posttrain.synthesis.ledger import FileLedger
from posttrain.synthesis.lengths import Lengths
from posttrain.synthesis.selection import (
    Answers,
    Candidate,
    Pair,
    choose_answers,
    choose_pairs,
    random_answers,
    random_pairs,
)

Chosen = Candidate | Pair
_COLUMNS = {"sft": ("completion",), "pairs": ("chosen", "rejected")}


@dataclass(frozen=True)
class Selected:
    """The rows of a kept file and of its control, and what became of the prompts.

    Attributes:
        control: as many rows for each prompt, chosen at random.
    """

    rows: list[dict[str, Any]]
    control: list[dict[str, Any]]
    ledger: FileLedger


def select(
    kept: KeptAnswers | KeptPairs,
    prompts: Mapping[str, Row],
    answers: Sequence[Answers],
    dedup: DedupConfig | None,
    seed: int,
) -> Selected:
    """Choose the rows of a file.

    Args:
        prompts: by sample id.
    """
    ledger = FileLedger()
    chosen: list[tuple[Answers, Chosen]] = []
    for each in answers:
        found, outcome = choose_answers(each, kept, seed) if kept.type == "sft" else choose_pairs(each, kept, seed)
        ledger.prompts[outcome] += 1
        chosen += [(each, one) for one in found]
    ledger.rows["chosen"] = len(chosen)
    if dedup is not None and dedup.by == "row":
        texts = [_placed_text(prompts[each.sample_id], one) for each, one in chosen]
        left_out = repeated(texts, dedup.near)
        chosen = [one for number, one in enumerate(chosen) if number not in left_out]
        ledger.duplicates = list(left_out.values())
    ledger.rows["duplicate"], ledger.rows["kept"] = len(ledger.duplicates), len(chosen)
    counts = Counter(each.sample_id for each, _ in chosen)
    control = [(each, one) for each in answers for one in _random(each, counts[each.sample_id], kept, seed)]
    rows, control_rows = ([_row(prompts[each.sample_id], one) for each, one in some] for some in (chosen, control))
    ledger.lengths, ledger.control_lengths = (_lengths(some, kept.type) for some in (rows, control_rows))
    return Selected(rows, control_rows, ledger)


def _random(answers: Answers, count: int, kept: KeptAnswers | KeptPairs, seed: int) -> Sequence[Chosen]:
    if kept.type == "sft":
        return random_answers(answers, count, kept, seed)
    return random_pairs(answers, count, kept, seed)


def _placed_text(prompt: Row, chosen: Chosen) -> tuple[str, str]:
    answers = [chosen] if isinstance(chosen, Candidate) else list(chosen)
    place = f"{prompt.place} answer {' and '.join(str(each.sample) for each in answers)}"
    return place, "\n".join([prompt_text(prompt.prompt), *(each.text for each in answers)])


def _row(prompt: Row, chosen: Chosen) -> dict[str, Any]:
    """A row to train on; what the trainers do not read says where it comes from."""
    row: dict[str, Any] = {"prompt": template_messages(prompt.prompt)}
    if isinstance(chosen, Candidate):
        row["completion"] = _answer(chosen)
        facts = {"reward": chosen.reward, "sample": chosen.sample}
    else:
        row["chosen"], row["rejected"] = _answer(chosen.chosen), _answer(chosen.rejected)
        facts = {
            "rewards": {"chosen": chosen.chosen.reward, "rejected": chosen.rejected.reward},
            "samples": {"chosen": chosen.chosen.sample, "rejected": chosen.rejected.sample},
        }
    if prompt.prompt.tools:
        row["tools"] = list(prompt.prompt.tools)
    return {**row, **prompt.facts, **facts}


def _answer(candidate: Candidate) -> list[dict[str, str]]:
    """The answer as messages: as text, one that is the JSON of messages would be read as these."""
    return [{"role": "assistant", "content": candidate.text}]


def _lengths(rows: Sequence[Mapping[str, Any]], kind: str) -> dict[str, Lengths | None]:
    return {column: Lengths.of([len(row[column][0]["content"]) for row in rows]) for column in _COLUMNS[kind]}
