"""`toolkit-predict`: answer every prompt of a file or a folder, in batches, resumably."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

from posttrain.base.console import Counting, console
from posttrain.base.files import why_unwritten
from posttrain.base.locks import own_output
from posttrain.base.text import counted
from posttrain.errors import RunError
from posttrain.inference.engine import Engine, Sampling, completion_text
from posttrain.inference.load import open_engine
from posttrain.predict.answers import answer_line
from posttrain.predict.inputs import match_files
from posttrain.predict.plan import PredictJob, Work, prepare, print_plan


def predict(job: PredictJob) -> list[Path]:
    """Answer everything and return the files written, in order.

    Raises:
        ConfigError: an output or a partial file is in the way, or another process is writing to the same output.
        DataError: rows cannot be answered.
        ModelError: the model cannot be loaded.
        RunError: the disk is full.
    """
    match_files(job.input, job.output)  # refuse an impossible output before creating anything there
    with own_output(job.output):
        work = prepare(job)
        print_plan(job, work)
        with _engine(job, work) as engine, closing(work.partial), _say_what_is_kept(work):
            work.partial.begin(work.identity)
            _answer(work, engine, Sampling.of(job.generation, logprobs=job.generation.logprobs))
            work.partial.finish(work.outputs)
    console.print(_endings(work))
    for path in work.outputs.values():
        console.print(f"wrote {path}")
    return list(work.outputs.values())


def _engine(job: PredictJob, work: Work) -> AbstractContextManager[Engine]:
    weights, generation = job.weights, job.generation
    return open_engine(
        generation.engine,
        weights.model,
        weights.adapter,
        weights.chat,
        batch_size=generation.batch_size,
        max_length=max(len(request.prompt_ids) for request in work.requests) + generation.max_new_tokens,
    )


def _answer(work: Work, engine: Engine, sampling: Sampling) -> None:
    """Generate the missing answers; each is written before the next one is taken."""
    keys = work.keys()
    done = {key for key, on_disk in keys.items() if on_disk in work.partial}
    tokens, started = 0, time.monotonic()
    with Counting("answering", "answers", len(keys)) as progress:
        progress.advance(len(done))
        for (place, sample), completion in engine.generate(work.requests, sampling, done=done):
            text = completion_text(work.text.tokenizer, completion, sampling.stop)
            work.partial.add(answer_line(work.rows[place], sample, completion, text))
            tokens += len(completion.token_ids)
            progress.advance()
    seconds = time.monotonic() - started
    if tokens:
        console.print(f"{tokens:,} tokens in {seconds:.1f} s ({tokens / seconds:,.0f} tokens/s)")


def _endings(work: Work) -> str:
    counts = work.partial.counts
    told = {
        "end": "ended by the model",
        "stop": "ended at a stop string",
        "length": "cut at max_new_tokens",
        "empty": "empty, so not usable for training",
    }
    endings = ", ".join(f"{counts[key]} {words}" for key, words in told.items() if counts[key])
    return f"{counted(len(work.partial), 'answer')}: {endings}"


@contextmanager
def _say_what_is_kept(work: Work) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        kept = (
            f"{len(work.partial)} of {len(work.keys())} answers are kept in {work.partial.path}; "
            "run the same command again to continue"
        )
        reason = why_unwritten(error) if isinstance(error, Exception) else None
        if reason is not None:
            raise RunError(f"{reason}; free some space; {kept}") from error
        console.print(kept)
        raise
