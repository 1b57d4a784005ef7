"""A job, and everything that is done for it before a model is loaded: what is asked, and where the answers go."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.config.sections.datasets import OnBadRecord
from posttrain.config.sections.generation import GenerationConfig
from posttrain.inference.engine import GenerationRequest
from posttrain.inference.load import ModelText, load_text
from posttrain.predict.answers import build_requests
from posttrain.predict.inputs import Row, match_files, read_inputs
from posttrain.predict.partial import AnswerKey, PartialOutput
from posttrain.predict.prompts import Room, encode_prompts
from posttrain.predict.weights import ChosenWeights


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
        rows: in the order of the input.
        requests: one for each row.
        faults: a line for each row that is left out.
        outputs: by the name of the input file.
        partial: the answers that are there already.
        identity: what answers must have been made of to belong to this job.
    """

    rows: list[Row]
    requests: list[GenerationRequest]
    text: ModelText
    faults: list[str]
    outputs: dict[str, Path]
    partial: PartialOutput
    identity: dict[str, Any]

    def keys(self) -> list[AnswerKey]:
        """Every answer that is wanted."""
        return [
            self.key(position, sample) for position, request in enumerate(self.requests) for sample in range(request.n)
        ]

    def key(self, position: int, sample: int) -> AnswerKey:
        """How an answer to the request at `position` is known on disk."""
        row = self.rows[position]
        return row.source.name, row.index, sample


def prepare(job: PredictJob) -> Work:
    """Read, check and tokenise the input, and look at what answers are there already; nothing is written.

    Raises:
        ConfigError: an output or a partial file is in the way.
        DataError: rows cannot be answered.
        ModelError: the tokenizer cannot be loaded, or cannot end a turn.
    """
    files = match_files(job.input, job.output)
    generation, chat = job.generation, job.weights.chat
    inputs = read_inputs(list(files), generation.columns, job.on_bad_record)
    text = load_text(job.weights.model, chat)
    room = Room(chat.max_length, generation.max_new_tokens, text.positions)
    prompts = encode_prompts(inputs.rows, text.encoder, room, job.on_bad_record)
    requests = build_requests(prompts.rows, prompts.ids, n=generation.n, seed=generation.seed)
    work = Work(
        rows=prompts.rows,
        requests=requests,
        text=text,
        faults=[*inputs.faults, *prompts.faults],
        outputs={source.name: target for source, target in files.items()},
        partial=PartialOutput(job.output),
        identity=_identity(job, inputs.digests, requests),
    )
    work.partial.require_free(work.identity, work.outputs.values(), work.keys(), overwrite=job.overwrite)
    return work


def _identity(job: PredictJob, inputs: dict[str, str], requests: list[GenerationRequest]) -> dict[str, Any]:
    prompts = hashlib.blake2b(digest_size=16)
    for request in requests:
        prompts.update(repr(request.prompt_ids).encode())
    return {
        "inputs": inputs,
        "prompts": prompts.hexdigest(),
        "model": job.weights.model.model_dump(mode="json"),
        "adapter": str(job.weights.adapter),
        "weights": job.weights.fingerprint(),
        "generation": job.generation.model_dump(mode="json"),
    }
