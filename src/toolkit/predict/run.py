"""`toolkit-predict`: answer every prompt of a file or a folder, in batches, resumably."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from toolkit.core.config.chat import ChatConfig
from toolkit.core.config.data import DatasetConfig, OnBadRecord
from toolkit.core.config.generation import GenerationConfig
from toolkit.core.config.model import ModelConfig
from toolkit.core.conversation_encoder import ConversationEncoder
from toolkit.core.runs.progress import console
from toolkit.core.sources import RecordSet, open_source
from toolkit.errors import ConfigError
from toolkit.inference.batching import plan_batches
from toolkit.inference.engine import Engine, Sampling
from toolkit.inference.load import load_engine
from toolkit.predict.answers import answer_line, build_requests
from toolkit.predict.partial import PartialOutput

Weights = Literal["auto", "merged", "adapter", "base"]


@dataclass(frozen=True)
class PredictJob:
    """What to answer, with what, and where the answers go; `input` and `output` are both files or both folders."""

    model: ModelConfig
    adapter: Path | None
    chat: ChatConfig
    generation: GenerationConfig
    input: Path
    output: Path
    on_bad_record: OnBadRecord = "error"
    overwrite: bool = False


def predict(job: PredictJob) -> list[Path]:
    """Answer everything and return the files written, in order.

    Raises:
        ConfigError: an output is there already. DataError: bad records. ModelError: the model cannot be loaded.
    """
    files = _files(job)
    records = {source: _read(source, job) for source, _ in files}  # all of it, before a model is loaded
    outputs = {
        source: PartialOutput(target, _identity(job, records[source]), overwrite=job.overwrite)
        for source, target in files
    }
    engine, encoder, tokenizer = load_engine(job.model, job.adapter, job.chat, job.generation.batch_size)
    for source, target in files:
        _answer_file(records[source], outputs[source], engine, encoder, tokenizer, job.generation)
        console.print(f"wrote {target}")
    engine.close()
    return [target for _, target in files]


def _files(job: PredictJob) -> list[tuple[Path, Path]]:
    if not job.input.exists():
        raise ConfigError(f"there is no file or folder {job.input}")
    if not job.input.is_dir():
        if job.output.is_dir():
            raise ConfigError(f"{job.output} is a folder; the output of one file is a file: name it, as in out.jsonl")
        return [(job.input, job.output)]
    sources = sorted(path for path in job.input.iterdir() if path.suffix == ".jsonl")
    if not sources:
        raise ConfigError(f"there is no .jsonl file in {job.input}")
    if job.output.is_file():
        raise ConfigError(f"{job.output} is a file; the output of a folder is a folder")
    return [(source, job.output / source.name) for source in sources]


def _read(source: Path, job: PredictJob) -> RecordSet:
    config = DatasetConfig(path=str(source), columns=job.generation.columns)
    records = open_source(config).read(job.on_bad_record, require_answer=False)
    for fault in records.faults:
        console.print(f"left out: {fault}", markup=False)
    return records


def _identity(job: PredictJob, records: RecordSet) -> dict[str, Any]:
    """What a partial file must have been made with to be continued."""
    return {
        "input": records.digest,
        "model": job.model.model_dump(mode="json"),
        "adapter": str(job.adapter) if job.adapter else None,
        "chat": job.chat.model_dump(mode="json"),
        "generation": job.generation.model_dump(mode="json"),
    }


def _answer_file(
    records: RecordSet,
    output: PartialOutput,
    engine: Engine,
    encoder: ConversationEncoder,
    tokenizer: Any,
    generation: GenerationConfig,
) -> None:
    """Generate batch by batch; batches follow from all requests, so a resumed run makes the same ones."""
    requests = build_requests(records.records, encoder, n=generation.n, seed=generation.seed)
    sampling = _sampling(generation)
    with _progress() as bar:
        task = bar.add_task("answering", total=len(requests) * generation.n, completed=len(output.answers))
        for batch in plan_batches(requests, generation.batch_size):
            chosen = batch.indices
            keys = [(records.records[index].index, sample) for index in chosen for sample in range(generation.n)]
            if not output.missing(keys):
                continue
            for position, completions in engine.generate([requests[index] for index in chosen], sampling):
                record = records.records[chosen[position]]
                output.add(
                    answer_line(record, sample, completion, tokenizer, engine.end_ids)
                    for sample, completion in enumerate(completions)
                )
            bar.update(task, completed=len(output.answers))
    output.finish()


def _sampling(generation: GenerationConfig) -> Sampling:
    return Sampling(
        **generation.model_dump(
            include={
                "max_new_tokens",
                "temperature",
                "top_p",
                "top_k",
                "min_p",
                "repetition_penalty",
                "stop",
                "logprobs",
            }
        )
    )


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )
