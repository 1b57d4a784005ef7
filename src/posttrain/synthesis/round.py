"""`toolkit-data run`: sample answers, grade them with the rewards of reinforcement learning, and keep the best.

Answers and grades are kept in files that are named by everything they depend on, so a command that was killed goes on
where it was, and one with other graders or another section `keep` generates nothing.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from posttrain.base.console import console
from posttrain.base.files import atomic_write_text, remove_left_behind
from posttrain.base.locks import own_output
from posttrain.base.outputs import output_lines
from posttrain.config.sections.generation import AnsweringConfig
from posttrain.errors import ConfigError, RunError
from posttrain.evaluate.grading import graded
from posttrain.evaluate.models import Asking, LocalModel, Questions, open_model
from posttrain.evaluate.prompts import GradedPrompts
from posttrain.inference.answering.shards import Shard
from posttrain.inference.devices import EngineProcesses
from posttrain.runs.manifest import differences
from posttrain.synthesis.config import PROMPTS, DataConfig, control_name
from posttrain.synthesis.kept_rows import select
from posttrain.synthesis.ledger import Ledger
from posttrain.synthesis.prompts import read_clean_prompts
from posttrain.synthesis.selection import Answers, sort_answers

_KEPT = "kept"
_SHOWN_DIFFERENCES = 10


def run(config: DataConfig, *, overwrite: bool = False, join: bool = False) -> Ledger:
    """Sample, grade and keep; the ledger is printed and written, too.

    Args:
        join: take the answers that all shards have sampled.

    Raises:
        ConfigError, DataError, ModelError: the input is wrong; nothing was asked.
        RunError: the disk is full, or a file has no rows.
        ServerError: the server fails; the answers that are there are kept.
    """
    with own_output(config.output):
        prompts, ledger = read_clean_prompts(config)
        with _asking(config, prompts, overwrite=overwrite, by_shards=join) as asking, _timed(ledger, "answering"):
            path = asking.join() if join else asking.run()
        with _timed(ledger, "grading"):
            grades = graded(prompts, path, config.output / _KEPT / "grades")
        remove_left_behind(grades.path)
        answers = _count(list(grades), asking, config.sample.n, ledger)
        Outputs(config, _described(config, prompts, asking)).write(prompts, answers, ledger)
    ledger.show()
    console.print(f"wrote {', '.join(each.path for each in config.keep)} and ledger.json in {config.output}")
    if empty := [path for path, each in ledger.files.items() if not each.rows["kept"]]:
        raise RunError(f"no row was kept for {', '.join(empty)}; the ledger says why")
    return ledger


def run_shard(config: DataConfig, shard: Shard, *, overwrite: bool = False) -> None:
    """Sample the answers of one shard of the prompts, which `run` grades when all shards are there; raises as `run`."""
    with own_output(shard.file_of(config.output / _KEPT / "answers" / PROMPTS)):
        prompts, _ = read_clean_prompts(config)
        with _asking(config, prompts, shard, overwrite=overwrite, by_shards=True) as asking:
            asking.run()
    console.print(f"shard {shard} is answered; when all are, --join in the place of --shard grades and keeps them")


@contextmanager
def _asking(
    config: DataConfig, prompts: GradedPrompts, shard: Shard | None = None, *, overwrite: bool, by_shards: bool
) -> Iterator[Asking]:
    """The prompts, ready to be asked while the block lasts.

    Raises:
        ConfigError: what would be kept is in the way, or by shards, the weights are not on this machine.
    """
    sampling = AnsweringConfig(**config.sample.model_dump(exclude={"n"}))
    with closing(EngineProcesses(sampling.devices)) as processes:
        model = open_model("the model", config.model, sampling, processes)
        if by_shards and isinstance(model, LocalModel):
            model.weights.digest_here()
        questions = Questions(prompts.rows, config.sample.n, sampling, config.on_bad_record == "skip", shard)
        asking = model.asking(PROMPTS, questions, config.output / _KEPT / "answers")
        Outputs(config, _described(config, prompts, asking)).require_free(overwrite=overwrite)
        if isinstance(model, LocalModel):
            model.longest = asking.longest
        yield asking


def _described(config: DataConfig, prompts: GradedPrompts, asking: Asking) -> dict[str, Any]:
    """What the kept rows depend on."""
    kept = config.model_dump(mode="json", include={"keep", "control", "dedup", "seed"})
    return {"answers": asking.path.stem, "grading": prompts.grading_id, **kept}


def _count(lines: Sequence[dict[str, Any]], asking: Asking, n: int, ledger: Ledger) -> list[Answers]:
    """The answers by prompt, counted in the ledger."""
    answers = [sort_answers(*each) for each in groupby(lines, key=lambda line: line["sample_id"])]
    ledger.prompts["asked"] = len(answers)
    ledger.prompts["unusable"] = ledger.prompts["read"] - sum(
        ledger.prompts[key] for key in ("contaminated", "duplicate", "asked")
    )
    ledger.answers["asked"] = len(answers) * n
    for each in answers:
        ledger.rewards[each.rewards] += 1
        ledger.answers.update(each.counts)
    tokens = [line["completion_tokens"] for line in lines]
    ledger.tokens = {
        "asked": None if asking.prompt_tokens is None else asking.prompt_tokens * n,
        "answered": None if None in tokens else sum(tokens),
    }
    return answers


@contextmanager
def _timed(ledger: Ledger, name: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    ledger.seconds[name] = round(time.monotonic() - started, 3)


@dataclass(frozen=True)
class Outputs:
    """The files that are written.

    Attributes:
        job: what their rows depend on; it is written before them.
    """

    config: DataConfig
    job: dict[str, Any]

    @property
    def names(self) -> list[str]:
        """Names of the files with rows."""
        names = [kept.path for kept in self.config.keep]
        return names + ([control_name(name) for name in names] if self.config.control else [])

    @property
    def _job_file(self) -> Path:
        return self.config.output / _KEPT / "job.json"

    def require_free(self, *, overwrite: bool) -> None:
        """Refuse to replace rows that were kept for another reason, unless `overwrite` allows it.

        Raises:
            ConfigError: a file exists that another config wrote.
        """
        taken = [path for name in self.names if (path := self.config.output / name).exists()]
        if overwrite or not taken:
            return
        there = json.loads(self._job_file.read_text(encoding="utf-8")) if self._job_file.is_file() else {}
        if there != self.job:
            shown = "".join(f"\n  {line}" for line in differences(there, self.job)[:_SHOWN_DIFFERENCES])
            raise ConfigError(
                f"{taken[0]} was written with another config; what differs:{shown}\n"
                "choose another output, or replace it with --overwrite"
            )

    def write(self, prompts: GradedPrompts, answers: Sequence[Answers], ledger: Ledger) -> None:
        """Choose and write the rows of each file, and at last the ledger."""
        config = self.config
        by_id = {row.facts["sample_id"]: row for row in prompts.rows}
        atomic_write_text(self._job_file, json.dumps(self.job, indent=2) + "\n")
        for kept in config.keep:
            selected = select(kept, by_id, answers, config.dedup, config.seed)
            files = {kept.path: selected.rows} | ({control_name(kept.path): selected.control} if config.control else {})
            for name, rows in files.items():
                with output_lines(config.output / name) as write:
                    for row in rows:
                        write(row)
            ledger.files[kept.path] = selected.ledger
            if not config.control:
                selected.ledger.control_lengths.clear()
        text = json.dumps(ledger.as_json(), indent=2, ensure_ascii=False)
        atomic_write_text(config.output / "ledger.json", text + "\n")
        for path in (self._job_file, *(config.output / name for name in (*self.names, "ledger.json"))):
            remove_left_behind(path)
