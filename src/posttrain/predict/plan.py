"""Check a job before a model is loaded, and print its plan."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from posttrain.base.console import console
from posttrain.base.locks import require_unowned
from posttrain.base.text import as_shown, counted
from posttrain.config.sections.answerers import EndpointConfig
from posttrain.config.sections.datasets import OnBadRecord
from posttrain.config.sections.generation import GenerationConfig
from posttrain.inference.answering.answer import Answerer, Asked
from posttrain.inference.answering.joining import joinable
from posttrain.inference.answering.partial import PartialOutput
from posttrain.inference.answering.rows import first_faults
from posttrain.inference.answering.shards import Shard
from posttrain.inference.weights import ChosenWeights
from posttrain.predict.inputs import match_files, read_inputs, skipped_files
from posttrain.predict.questions import Questions, asked_here, asked_of_servers


@dataclass(frozen=True)
class PredictJob:
    """What to answer, with which weights or servers, and where to write.

    Attributes:
        input, output: both files, or both folders.
        shard: which part of the rows is answered; None for all.
        join: whether the answers of all shards are joined, instead.
    """

    model: ChosenWeights | EndpointConfig
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
        places: of the asked rows among those of `questions`.
        faults: one line for each row left out.
    """

    asked: Asked
    questions: Questions
    places: Sequence[int]
    faults: list[str]

    def answers(self) -> AbstractContextManager[Answerer]:
        """Open what answers the asked rows."""
        return self.questions.answers(self.places)


def prepare(job: PredictJob) -> Work:
    """Read, check and tokenise the input, and look for existing answers; nothing is written.

    Raises:
        ConfigError: an output or a partial file is in the way, or a server's key is missing.
        DataError: rows cannot be answered.
        ModelError: the tokenizer cannot be loaded, or cannot end a turn.
    """
    files, generation = match_files(job.input, job.output), job.generation
    inputs = read_inputs(list(files), generation.columns, job.on_bad_record)
    if isinstance(job.model, EndpointConfig):
        questions = asked_of_servers(job.model, generation, inputs.rows, job.on_bad_record)
    else:
        by_shards = job.shard is not None or job.join
        questions = asked_here(job.model, generation, inputs.rows, job.on_bad_record, by_shards=by_shards)
    sampling = generation.model_dump(mode="json", exclude={"devices"})
    asked = Asked(
        rows=questions.rows,
        n=generation.n,
        outputs={source.name: target for source, target in files.items()},
        partial=PartialOutput(job.output),
        identity={"inputs": inputs.digests, **questions.identity, "generation": sampling},
        groups=questions.groups,
        computed=questions.computed,
    )
    places: Sequence[int] = range(len(asked.rows))
    if job.shard is not None:
        places, asked = job.shard.places(asked.groups), asked.of(job.shard)
    if not job.join:
        wanted = asked.keys().values()
        asked.partial.require_free(asked.identity, asked.outputs.values(), wanted, overwrite=job.overwrite)
    return Work(asked, questions, places, [*inputs.faults, *questions.faults])


def show_plan(job: PredictJob) -> None:
    """`--dry-run`: check everything that can be checked without loading the model, and print the plan.

    Raises:
        ConfigError, DataError, ModelError: as the job itself would.
    """
    require_unowned(job.written)
    work = prepare(job)
    if job.join:
        joinable(work.asked, overwrite=job.overwrite)
    print_plan(job, work)
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
    left_out = f", {len(work.faults)} left out" if work.faults else ""
    found = f", {there} of them already in {asked.partial.path}" if there else ""
    where = f"{as_shown(job.input)}{left_out}{work.questions.lengths}"
    console.print(f"rows      {len(work.questions.rows):,} in {where}")
    if job.shard is not None:
        console.print(f"shard     {job.shard}: {counted(len(asked.rows), 'row')}")
    console.print(f"answers   {answers:,}: {generation.n} per row{found}")
    if isinstance(job.model, EndpointConfig):
        console.print(f"model     {job.model.model} at {job.model.place}")
    else:
        console.print(f"weights   {job.model}")
    console.print(f"sampling  {_sampling(job)}")
    if generation.devices and not isinstance(job.model, EndpointConfig):
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
    if isinstance(job.model, EndpointConfig):
        at_once = f"{job.model.concurrency} at once at each server"
    else:
        at_once = f"{generation.batch_size} at once"
    return ", ".join([start, *options, f"at most {generation.max_new_tokens} tokens, {at_once}"])
