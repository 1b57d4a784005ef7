"""`toolkit-predict`: answer every prompt of a file or a folder, in batches, resumably."""

from pathlib import Path

from posttrain.base.console import console
from posttrain.base.locks import own_output
from posttrain.inference.answering.joining import join as join_shards
from posttrain.inference.answering.joining import joinable
from posttrain.predict.inputs import match_files
from posttrain.predict.plan import PredictJob, Work, prepare, print_plan


def predict(job: PredictJob) -> list[Path]:
    """Answer everything, or one shard of it, and return the files written, in order: none by a shard.

    Raises:
        ConfigError: an output or a partial file is in the way, or another process is writing to the same output.
        DataError: rows cannot be answered.
        ModelError: the model cannot be loaded.
        RunError: the disk is full.
        ServerError: the servers fail.
    """
    match_files(job.input, job.output)  # refuse an impossible output before creating anything there
    with own_output(job.written):
        work = prepare(job)
        print_plan(job, work)
        if work.asked.is_complete:
            work.asked.answer(None)
        else:
            with work.answers() as answerer:
                work.asked.answer(answerer)
    console.print(work.asked.endings())
    if job.shard is not None:
        console.print(
            f"shard {job.shard} is answered; once all are, --join in the place of --shard writes {job.output}"
        )
        return []
    return _written(work)


def join(job: PredictJob) -> list[Path]:
    """Join the answers of all shards and return the files written, in order.

    Raises:
        ConfigError: an output is in the way, or a shard is missing, unfinished or of another job.
        DataError, ModelError: as `predict`.
        RunError: the disk is full.
    """
    match_files(job.input, job.output)
    with own_output(job.output):
        work = prepare(job)
        shards = joinable(work.asked, overwrite=job.overwrite)
        print_plan(job, work)
        join_shards(shards)
    return _written(work)


def _written(work: Work) -> list[Path]:
    outputs = list(work.asked.outputs.values())
    for path in outputs:
        console.print(f"wrote {path}")
    return outputs
