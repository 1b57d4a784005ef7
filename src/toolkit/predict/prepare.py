"""Everything before the model is loaded: what is asked, where the answers go, and whether all of that is right."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.core.config.data import OnBadRecord
from toolkit.core.config.generation import GenerationConfig
from toolkit.core.conversation_encoder import ConversationEncoder
from toolkit.core.sources import SHOWN_FAULTS
from toolkit.errors import DataError
from toolkit.inference.engine import GenerationRequest
from toolkit.inference.load import ModelText, load_text
from toolkit.predict.answers import build_requests
from toolkit.predict.inputs import Inputs, Row, match_files, read_inputs
from toolkit.predict.partial import AnswerKey, PartialOutput
from toolkit.predict.weights import ChosenWeights


@dataclass(frozen=True)
class PredictJob:
    """What to answer, with what, and where the answers go; `input` and `output` are both files or both folders."""

    weights: ChosenWeights
    generation: GenerationConfig
    input: Path
    output: Path
    on_bad_record: OnBadRecord = "error"
    overwrite: bool = False


@dataclass(frozen=True)
class Work:
    """A job whose input was read and found right.

    Attributes:
        rows: in the order of the input; `requests` has one for each of them.
        faults: a line for each row that is left out.
        outputs: by the name of the input file.
        identity: what answers on disk must have been made of to be part of this job.
    """

    rows: list[Row]
    requests: list[GenerationRequest]
    text: ModelText
    faults: list[str]
    outputs: dict[str, Path]
    partial: PartialOutput
    identity: dict[str, Any]

    def key(self, position: int, sample: int) -> AnswerKey:
        """How the answer is known on disk."""
        row = self.rows[position]
        return row.source.name, row.line, sample


def prepare(job: PredictJob) -> Work:
    """Read, check and tokenise the input, and find the answers that are there already; nothing is written.

    Raises:
        ConfigError: an output is in the way. DataError: rows cannot be answered. ModelError: there is no tokenizer.
    """
    files = match_files(job.input, job.output)
    outputs = {source.name: target for source, target in files.items()}
    partial = PartialOutput(job.output)
    inputs = read_inputs(list(files), job.generation.columns, job.on_bad_record)
    text = load_text(job.weights.model, job.weights.chat)
    rows, prompts, faults = _fitting(inputs, text, job)
    requests = build_requests(rows, prompts, n=job.generation.n, seed=job.generation.seed)
    work = Work(rows, requests, text, faults, outputs, partial, _identity(job, inputs, requests))
    wanted = [work.key(position, sample) for position, request in enumerate(requests) for sample in range(request.n)]
    partial.require_free(work.identity, outputs.values(), wanted, overwrite=job.overwrite)
    return work


def _fitting(inputs: Inputs, text: ModelText, job: PredictJob) -> tuple[list[Row], list[list[int]], list[str]]:
    """The rows whose prompts can be asked, those prompts, and a line for each other row."""
    encoded = _encode([row for row in inputs.rows], text.encoder)
    judged = [(row, ids, _fault(ids, text, job)) for row, ids in zip(inputs.rows, encoded, strict=True)]
    faults = [f"{row.place}: {fault}" for row, _, fault in judged if fault]
    kept = [(row, ids) for row, ids, fault in judged if not fault and not isinstance(ids, str)]
    if faults and (job.on_bad_record == "error" or not kept):
        shown = [*faults[:SHOWN_FAULTS], *([f"... and {len(faults) - SHOWN_FAULTS} more"] if len(faults) > SHOWN_FAULTS else [])]
        advice = "correct them, or leave them out by on_bad_record: skip" if kept else "there is no other row"
        raise DataError("\n".join([f"{len(faults)} rows cannot be answered:", *(f"  {line}" for line in shown), advice]))
    return [row for row, _ in kept], [ids for _, ids in kept], [*inputs.faults, *faults]


def _encode(rows: Sequence[Row], encoder: ConversationEncoder) -> list[list[int] | str]:
    """Ids of each prompt, or why there are none."""
    ...


def _fault(ids: list[int] | str, text: ModelText, job: PredictJob) -> str | None:
    ...
