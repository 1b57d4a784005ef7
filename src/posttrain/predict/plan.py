"""Check a job before a model is loaded, and print its plan."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.base.console import console
from posttrain.base.locks import require_unowned
from posttrain.base.text import counted
from posttrain.config.sections.datasets import OnBadRecord
from posttrain.config.sections.generation import GenerationConfig
from posttrain.inference.answering.answer import Asked
from posttrain.inference.answering.partial import PartialOutput
from posttrain.inference.answering.rows import Room, encode_prompts, first_faults
from posttrain.inference.engine import GenerationRequest
from posttrain.inference.load import ModelText, load_text
from posttrain.inference.weights import ChosenWeights
from posttrain.predict.inputs import match_files, read_inputs, skipped_files


@dataclass(frozen=True)
class PredictJob:
    """What to answer, with which weights, and where to write; `input` and `output` are both files or both folders."""

    weights: ChosenWeights
    generation: GenerationConfig
    input: Path
    output: Path
    on_bad_record: OnBadRecord = "error"
    overwrite: bool = False


@dataclass(frozen=True)
class Work:
    """A job whose input has been read and checked.

    Attributes:
        requests: one for each row that is asked.
        faults: one line for each row left out.
    """

    asked: Asked
    requests: list[GenerationRequest]
    text: ModelText
    faults: list[str]


def prepare(job: PredictJob) -> Work:
    """Read, check and tokenise the input, and look for existing answers; nothing is written.

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
    requests = prompts.requests(generation.n, generation.seed)
    asked = Asked(
        rows=prompts.rows,
        n=generation.n,
        outputs={source.name: target for source, target in files.items()},
        partial=PartialOutput(job.output),
        identity=_identity(job, inputs.digests, requests),
    )
    asked.partial.require_free(asked.identity, asked.outputs.values(), asked.keys().values(), overwrite=job.overwrite)
    return Work(asked, requests, text, [*inputs.faults, *prompts.faults])


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
        "generation": job.generation.model_dump(mode="json", exclude={"devices"}),
    }


def show_plan(job: PredictJob) -> None:
    """`--dry-run`: check everything that can be checked without loading the model, and print the plan.

    Raises:
        ConfigError, DataError, ModelError: as the job itself would.
    """
    require_unowned(job.output)
    print_plan(job, prepare(job))
    console.print("nothing was generated (--dry-run)")


def print_plan(job: PredictJob, work: Work) -> None:
    """Print the rows left out, and then rows, answers, weights, sampling options and output."""
    if others := skipped_files(job.input):
        console.print(f"skipped (only .jsonl files in a folder are read): {', '.join(others)}")
    for fault in first_faults(work.faults):
        console.print(f"left out: {fault}")
    generation, asked = job.generation, work.asked
    answers = len(asked.rows) * generation.n
    there = len(asked.partial) if asked.partial.job == asked.identity else 0
    lengths = [len(request.prompt_ids) for request in work.requests]
    left_out = f", {len(work.faults)} left out" if work.faults else ""
    found = f", {there} of them already in {asked.partial.path}" if there else ""
    shortest = f"{min(lengths):,} to " * (min(lengths) < max(lengths))
    tokens = f"{shortest}{counted(max(lengths), 'token')}"
    console.print(f"rows      {len(asked.rows):,} in {job.input}{left_out}; {tokens}")
    console.print(f"answers   {answers:,}: {generation.n} per row{found}")
    console.print(f"weights   {job.weights}")
    console.print(f"sampling  {_sampling(job)}")
    if generation.devices:
        console.print(f"devices   {', '.join(generation.devices)}")
    console.print(f"output    {job.output}")


def _sampling(job: PredictJob) -> str:
    """The options that differ from their defaults; greedy decoding has no seed."""
    generation = job.generation
    start, names = "greedy", ["repetition_penalty", "stop", "logprobs"]
    if generation.temperature > 0:
        start = f"temperature {generation.temperature:g}, seed {generation.seed}"
        names = ["top_p", "top_k", "min_p", *names]
    usual, given = GenerationConfig().model_dump(mode="json"), generation.model_dump(mode="json")
    options = [f"{name} {given[name]}" for name in names if given[name] != usual[name]]
    return ", ".join([start, *options, f"at most {generation.max_new_tokens} tokens, {generation.batch_size} at once"])
