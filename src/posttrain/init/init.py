"""`toolkit-init`: read the data, ask what cannot be measured, write a config and check it with --dry-run."""

import math
import os
import shlex
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from posttrain.base.console import console
from posttrain.base.extras import require_extra
from posttrain.base.files import atomic_write_text, require_file, temporary_sibling
from posttrain.base.outputs import checked_output
from posttrain.base.text import as_shown, counted, on_one_line
from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.model import ModelConfig
from posttrain.errors import ConfigError
from posttrain.init.columns import TASKS, Guess, Task, guess_columns
from posttrain.init.measure import Measured, measure, suggested_length, suggested_micro_batch
from posttrain.init.texts import (
    GENERATIONS,
    HELD_OUT,
    NEW_TOKENS,
    Choices,
    eval_config,
    pipeline_config,
    rl_config,
    server_config,
    train_config,
)

if TYPE_CHECKING:
    from posttrain.init.golds import Gold

_MODEL = "smollm2-135m-instruct"
_COMMANDS = {"sft": "toolkit-sft", "dpo": "toolkit-dpo", "grpo": "toolkit-rl-train", "pipeline": "toolkit-pipeline"}
_ROWS_PER_STEP = {"sft": 16, "dpo": 16, "grpo": 8 * GENERATIONS}
_FEW = 1000
"""Below this number of rows, three passes are suggested rather than one."""
_ENOUGH_TO_HOLD_OUT = 100
_ENOUGH_TO_DECIDE = 50
"""Held-out prompts of a pipeline: fewer than 30 give no verdict, and a share is met only about."""


@dataclass(frozen=True)
class Wishes:
    """What the command line says; None for what is to be asked."""

    task: Task | Literal["pipeline"] | None
    model: str | None
    data: Path | None
    output: Path | None
    yes: bool
    overwrite: bool


@dataclass(frozen=True)
class _Files:
    """The configs that are written; None for those that are not needed."""

    train: Path
    server: Path | None = None
    evaluation: Path | None = None
    pipeline: Path | None = None

    @classmethod
    def of(cls, output: Path, task: Task, *, is_pipeline: bool) -> "_Files":
        def beside(name: str) -> Path:
            return output.with_name(f"{output.stem}_{name}.yaml")

        if is_pipeline:
            return cls(beside("grpo"), beside("data"), beside("eval"), output)
        return cls(output, beside("data") if task == "grpo" else None)

    def all(self) -> list[Path]:
        """The files, each after those that it names."""
        return [each for each in (self.server, self.train, self.evaluation, self.pipeline) if each is not None]

    def aside(self) -> "_Files":
        """Other names beside them."""
        every = (self.train, self.server, self.evaluation, self.pipeline)
        train, *others = (None if each is None else temporary_sibling(each) for each in every)
        assert train is not None
        return _Files(train, *others)

    def texts(self, choices: Choices) -> dict[Path, str]:
        """The texts of the files."""
        if self.server is None or choices.gold is None:
            return {self.train: train_config(choices)}
        texts = {
            self.server: server_config(choices, choices.gold),
            self.train: rl_config(choices, self.train.stem, self.server.name),
        }
        if self.evaluation is not None and self.pipeline is not None:
            texts[self.evaluation] = eval_config(choices, self.train.name, self.server.name)
            texts[self.pipeline] = pipeline_config(choices, self.train.name, self.evaluation.name)
        return texts


def init(wishes: Wishes) -> None:
    """Write a config for a data file; for grpo also one of its dataserver, for a pipeline those of its steps.

    Raises:
        ConfigError, DataError, ModelError: the data, the model or an answer are wrong; or a file exists. Nothing is
            written then.
    """
    require_extra("train", "toolkit-init")
    ask = _Questions(wishes.yes)
    is_pipeline = wishes.task == "pipeline"
    task: Task | None = "grpo" if wishes.task == "pipeline" else wishes.task
    data = wishes.data or Path(ask("Which file holds the data?", None))
    require_file(data)
    guess = _confirmed(data, guess_columns(data, task), task, ask)
    model = wishes.model or ask("Which model: a folder, a .gguf file, a Hugging Face id, or the packaged one?", _MODEL)
    command = "pipeline" if is_pipeline else guess.task
    output = wishes.output or Path(ask("Which file shall hold the config?", f"{command}.yaml"))
    if output.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{as_shown(output)}: the name of a config ends in .yaml")
    files = _Files.of(output, guess.task, is_pipeline=is_pipeline)
    with ExitStack() as stack:
        for file in files.all():
            stack.enter_context(checked_output(file, [data], overwrite=wishes.overwrite))
        choices = _measured_choices(data, guess, model, output, ask, _ENOUGH_TO_DECIDE * is_pipeline)
        if is_pipeline and not choices.held_out:
            raise ConfigError(
                f"a pipeline decides by held-out prompts, for which {_ENOUGH_TO_HOLD_OUT} usable rows are needed; "
                f"there are {choices.measured.rows:,}: use --task grpo"
            )
        _require_dry_run(files, choices, _COMMANDS[command])
        for file, text in files.texts(choices).items():
            atomic_write_text(file, text)
            console.print(f"wrote {as_shown(file)}, which passes --dry-run")
    console.print("what to do next:")
    next_ = [("toolkit-preview", files.train), (_COMMANDS[command], output)]
    for name, file in [*next_, *([] if is_pipeline else [("toolkit-merge", output)])]:
        console.print(f"  {name} {on_one_line(shlex.quote(str(file)))}")


class _Questions:
    """Asks in the terminal, or takes what is suggested."""

    def __init__(self, yes: bool) -> None:
        self._yes = yes

    def __call__(self, question: str, suggested: str | None) -> str:
        """The answer; ConfigError if there is none."""
        if self._yes and suggested is None:
            raise ConfigError("--yes needs --data FILE: no data can be suggested")
        if self._yes:
            return str(suggested)
        try:
            answer = console.input(f"{question}{f' [{suggested}]' if suggested else ''} ", markup=False).strip()
        except EOFError:
            raise ConfigError(f"no answer to: {question} With --yes and --data FILE nothing is asked") from None
        if not answer and suggested is None:
            raise ConfigError(f"no answer to: {question}")
        return answer or str(suggested)


def _confirmed(data: Path, guess: Guess, task: Task | None, ask: _Questions) -> Guess:
    """The guess for the task that the user wants; its columns are shown."""
    if task is None:
        _show_columns(guess)
        answer = ask(f"Train for which task, {', '.join(TASKS)}?", guess.task)
        chosen: Task | None = next((each for each in TASKS if each == answer), None)
        if chosen is None:
            raise ConfigError(f"{on_one_line(answer)} is none of the tasks {', '.join(TASKS)}")
        if chosen == guess.task:
            return guess
        guess = guess_columns(data, chosen)
    _show_columns(guess)
    if guess.task == "grpo":
        require_extra("server", "a dataserver, which grpo learns from,")
    return guess


def _show_columns(guess: Guess) -> None:
    shown = ", ".join(f"{meaning} = {on_one_line(name)}" for meaning, name in guess.columns.items())
    unused = f"; not used: {', '.join(map(on_one_line, guess.unused))}" if guess.unused else ""
    console.print(f"columns         for {guess.task}: {shown}{unused}")


def _measured_choices(
    data: Path, guess: Guess, model: str, output: Path, ask: _Questions, least_held_out: int
) -> Choices:
    from posttrain.inference.load import load_text

    settings = ModelConfig.model_validate({"name": model}, context={"base_dir": Path.cwd()})
    gold = _found_gold(data, guess)
    text = load_text(settings, ChatConfig())
    measured = measure(data, guess, text.encoder, gold)
    length = suggested_length(measured, text.positions, NEW_TOKENS if gold else 0)
    _report(measured, length)
    share = max(HELD_OUT, math.ceil(100 * least_held_out / measured.rows) / 100)
    held_out = share if measured.rows >= _ENOUGH_TO_HOLD_OUT else 0.0
    trained = (measured.rows - round(held_out * measured.rows)) * measured.within(length)
    rows_per_step = _ROWS_PER_STEP[guess.task]
    asked = rows_per_step // GENERATIONS if gold else rows_per_step
    epochs = _positive(ask("How many passes over the data?", "1" if trained >= _FEW else "3"))
    steps = max(1, math.ceil(round(epochs * trained / asked, 9)))
    console.print(f"steps           {steps:,} of {asked} {'prompts' if gold else 'rows'} each")
    longest = length + NEW_TOKENS * bool(gold)
    micro_batch = suggested_micro_batch(settings, longest, rows_per_step, 1 + (guess.task == "dpo"), console.print)
    # A dataserver reads no file through a link that leads elsewhere.
    folder, file = (Path(os.path.realpath(each)) if gold else each.absolute() for each in (output.parent, data))
    path, root = os.path.relpath(file, folder), None
    if gold and path.startswith(".."):
        path, root = file.name, os.path.relpath(file.parent, folder)
    return Choices(
        name=output.stem,
        model=_model_seen_from(folder, settings.name),
        data=path,
        data_root=root,
        guess=guess,
        measured=measured,
        max_length=length,
        rows_per_step=rows_per_step,
        micro_batch=micro_batch,
        steps=steps,
        epochs=epochs,
        held_out=held_out,
        gold=gold,
    )


def _found_gold(data: Path, guess: Guess) -> "Gold | None":
    if guess.task != "grpo":
        return None
    from posttrain.init.golds import find_gold  # needs the dataserver's packages

    gold = find_gold(data, guess.columns["gold"])
    console.print(
        f"gold answers    {'numbers' if gold.is_number else 'texts'}{f' after {gold.after}' if gold.after else ''}, "
        f"compared with {'the last number of' if gold.is_number else 'the whole of'} a completion"
    )
    return gold


def _report(measured: Measured, length: int) -> None:
    console.print(f"rows            {measured.rows:,} usable, {len(measured.faults):,} not")
    for fault in measured.faults[:3]:
        console.print(f"                {on_one_line(fault)}")
    told = f"p50 {measured.percentile(50):,}, p95 {measured.percentile(95):,}, longest {measured.lengths[-1]:,} tokens"
    longer = sum(tokens > length for tokens in measured.lengths)
    dropped = f"; {longer:,} of {counted(len(measured.lengths), 'measured row')} are longer" if longer else ""
    console.print(f"lengths         {told}; the limit is {length:,}{dropped}")


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number <= 1000:
        raise ConfigError(f"the passes over the data must be a number above 0, up to 1000, not {on_one_line(text)}")
    return number


def _model_seen_from(folder: Path, name: str) -> str:
    """A model as a config in `folder` names it: a path relative to the folder, if it is a path."""
    if not Path(name).exists():
        return name
    relative = os.path.relpath(name, folder)
    return relative if relative.startswith("..") else f"./{relative}"


def _require_dry_run(files: _Files, choices: Choices, command: str) -> None:
    """Check configs with --dry-run under other names beside their own; ConfigError with its message if they fail."""
    aside = files.aside()
    checked = {aside.train: _COMMANDS[choices.guess.task], aside.evaluation: "toolkit-eval", aside.pipeline: command}
    try:
        for file, text in aside.texts(choices).items():
            file.write_text(text, encoding="utf-8")
        failed = next((told for file, name in checked.items() if file and (told := _dry_run(name, file))), "")
    finally:
        for file in aside.all():
            file.unlink(missing_ok=True)
    for file, hidden in zip(files.all(), aside.all(), strict=True):
        failed = failed.replace(str(hidden.absolute()), str(file)).replace(str(hidden), str(file))
    if failed:
        raise ConfigError(f"nothing was written, because the config does not pass --dry-run: {failed}")


def _dry_run(command: str, config: Path) -> str:
    """The error with which a command's --dry-run ends; an empty text if there is none."""
    module = command.removeprefix("toolkit-").replace("-", "_")
    words = [sys.executable, "-c", f"from posttrain.cli.{module} import main; main()", str(config), "--dry-run"]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    return done.stderr.rpartition("error: ")[2].strip() if done.returncode else ""
