"""Check a job before a model is loaded, and print its plan."""

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from posttrain.base.console import console
from posttrain.base.locks import require_unowned
from posttrain.base.text import counted
from posttrain.config.sections.datasets import OnBadRecord
from posttrain.config.sections.generation import GenerationConfig
from posttrain.inference.answering.answer import Asked
from posttrain.inference.answering.joining import joinable
from posttrain.inference.answering.partial import PartialOutput, require_new
from posttrain.inference.answering.rows import Room, encode_prompts, first_faults
from posttrain.inference.answering.shards import Shard
from posttrain.inference.devices import computed_in
from posttrain.inference.engine import GenerationRequest, plan_groups
from posttrain.inference.load import ModelText, load_text
from posttrain.inference.weights import ChosenWeights
from posttrain.predict.inputs import match_files, read_inputs, skipped_files


@dataclass(frozen=True)
class PredictJob:
    """What to answer, with which weights, and where to write; `input` and `output` are both files or both folders.

    Attributes:
        shard: which part of the rows is answered; None for all.
        join: whether the answers of all shards are joined, instead.
    """

    weights: ChosenWeights
    generation: GenerationConfig
    input: Path
    output: Path
    on_bad_record: OnBadRecord = "error"
    overwrite: bool = False
    shard: Shard | None = None
    join: bool = False

    @property
    def written(self) -> Path:
        """What no other process may write meanwhile."""
        return self.output if self.shard is None else self.shard.file_of(self.output)


@dataclass(frozen=True)
class Work:
    """A job whose input has been read and checked.

    Attributes:
        requests: one for each row that is asked.
        lengths: tokens of each prompt of the input.
        faults: one line for each row left out.
    """

    asked: Asked
    requests: list[GenerationRequest]
    lengths: list[int]
    text: ModelText
    faults: list[str]


def prepare(job: PredictJob) -> Work:
    """Read, check and tokenise the input, and look for existing answers; nothing is written.

    Raises:
        ConfigError: an output or a partial file is in the way, or shards cannot be joined.
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
    lengths = [len(ids) for ids in prompts.ids]
    asked = Asked(
        rows=prompts.rows,
        n=generation.n,
        outputs={source.name: target for source, target in files.items()},
        partial=PartialOutput(job.output),
        identity=_identity(job, inputs.digests, requests),
        groups=plan_groups(lengths, generation.n, generation.batch_size),
        computed=partial(computed_in, job.weights.model, generation.devices),
    )
    if job.shard is not None:
        requests = [requests[place] for place in job.shard.places(asked.groups)]
        asked = asked.of(job.shard)
    if job.join:
        require_new(asked.outputs.values(), overwrite=job.overwrite)
        joinable(asked)
    else:
        wanted = asked.keys().values()
        asked.partial.require_free(asked.identity, asked.outputs.values(), wanted, overwrite=job.overwrite)
    return Work(asked, requests, lengths, text, [*inputs.faults, *prompts.faults])


def _identity(job: PredictJob, inputs: dict[str, str], requests: list[GenerationRequest]) -> dict[str, Any]:
    prompts = hashlib.blake2b(digest_size=16)
    for request in requests:
        prompts.update(repr(request.prompt_ids).encode())
    return {
        "inputs": inputs,
        "prompts": prompts.hexdigest(),
        **(_weights_anywhere if job.shard is not None or job.join else _weights_here)(job.weights),
        "generation": job.generation.model_dump(mode="json", exclude={"devices"}),
    }


def _weights_here(weights: ChosenWeights) -> dict[str, Any]:
    """What is cheap to find out and changes with the weights."""
    return {
        "model": weights.model.model_dump(mode="json"),
        "adapter": str(weights.adapter),
        "weights": weights.fingerprint(),
    }


def _weights_anywhere(weights: ChosenWeights) -> dict[str, Any]:
    """What is the same on each machine that has the weights, wherever they are there."""
    return {
        "model": weights.model.model_dump(mode="json", exclude={"name", "revision", "adapter"}),
        "weights": weights.digest_here(),
    }


def show_plan(job: PredictJob) -> None:
    """`--dry-run`: check everything that can be checked without loading the model, and print the plan.

    Raises:
        ConfigError, DataError, ModelError: as the job itself would.
    """
    require_unowned(job.written)
    print_plan(job, prepare(job))
    console.print(f"nothing was {'joined' if job.join else 'generated'} (--dry-run)")


def print_plan(job: PredictJob, work: Work) -> None:
    """Print the rows left out, and then rows, answers, weights, sampling options and output."""
    if others := skipped_files(job.input):
        console.print(f"skipped (only .jsonl files in a folder are read): {', '.join(others)}")
    for fault in first_faults(work.faults):
        console.print(f"left out: {fault}")
    generation, asked = job.generation, work.asked
    answers = len(asked.rows) * generation.n
    there = len(asked.partial) if asked.partial.job == asked.identity else 0
    lengths = work.lengths
    left_out = f", {len(work.faults)} left out" if work.faults else ""
    found = f", {there} of them already in {asked.partial.path}" if there else ""
    shortest = f"{min(lengths):,} to " * (min(lengths) < max(lengths))
    tokens = f"{shortest}{counted(max(lengths), 'token')}"
    console.print(f"rows      {len(lengths):,} in {job.input}{left_out}; {tokens}")
    if job.shard is not None:
        console.print(f"shard     {job.shard}: {counted(len(asked.rows), 'row')}")
    console.print(f"answers   {answers:,}: {generation.n} per row{found}")
    console.print(f"weights   {job.weights}")
    console.print(f"sampling  {_sampling(job)}")
    if generation.devices:
        console.print(f"devices   {', '.join(generation.devices)}")
    console.print(f"output    {job.written}")


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
