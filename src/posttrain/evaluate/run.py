"""`toolkit-eval`: measure models on tasks, one model after another, and compare them."""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from posttrain.base.console import console
from posttrain.base.files import atomic_write_text
from posttrain.base.locks import own_output, require_unowned
from posttrain.base.outputs import check_output_folder, output_lines
from posttrain.base.text import counted
from posttrain.config.sections.answerers import TrainedModelConfig
from posttrain.errors import ConfigError, DataError, RunError, ToolkitError
from posttrain.evaluate.config import COMPARISON, KEPT, REPORT, RESULTS, EvalConfig, name_fault
from posttrain.evaluate.grading import Grades
from posttrain.evaluate.models import EndpointModel, LocalModel, open_model
from posttrain.evaluate.report import write_report
from posttrain.evaluate.results import Results, task_result
from posttrain.evaluate.scores_file import write_scores
from posttrain.evaluate.tables import markdown, result_tables
from posttrain.evaluate.tasks.base import Job, LoadedTask, Measured, Setting
from posttrain.inference.devices import EngineProcesses

AnyModel = LocalModel | EndpointModel


@dataclass(frozen=True)
class Choice:
    """What the command line chooses.

    Attributes:
        configs: training configs whose models are measured too, under the names of the files.
        tasks: the tasks to measure; None for all.
        prompts: at most this many prompts for each task.
    """

    configs: Sequence[Path] = ()
    baseline: str | None = None
    tasks: Sequence[str] | None = None
    prompts: int | None = None

    def applied_to(self, config: EvalConfig) -> EvalConfig:
        """The config with what was chosen; ConfigError if it names something that is not there."""
        models = dict(config.models)
        for path in self.configs:
            name = path.parent.name if path.name == "config.yaml" else path.stem
            if name in models:
                raise ConfigError(f"there are two models named {name!r}; give {path} a name in the section models")
            if fault := name_fault(name, "models"):
                raise ConfigError(f"{path} cannot be measured under its own name: {fault}, in the section models")
            models[name] = TrainedModelConfig(config=path.absolute())
        if not models:
            raise ConfigError("there are no models: name some in the section models, or give training configs")
        baseline = self.baseline or config.baseline or next(iter(models))
        if baseline not in models:
            raise ConfigError(f"baseline: there is no model {baseline!r}, only {', '.join(models)}")
        tasks = {name: config.tasks[name] for name in self._tasks(config)}
        if self.prompts is not None:
            tasks = {
                name: task.model_copy(update={"prompts": min(self.prompts, task.prompts or self.prompts)})
                for name, task in tasks.items()
            }
        return config.model_copy(update={"models": models, "baseline": baseline, "tasks": tasks})

    def _tasks(self, config: EvalConfig) -> Sequence[str]:
        names = list(config.tasks) if self.tasks is None else self.tasks
        if unknown := [name for name in names if name not in config.tasks]:
            raise ConfigError(f"--tasks: there is no task {unknown[0]!r}, only {', '.join(config.tasks)}")
        return names


def evaluate(config: EvalConfig, choice: Choice) -> Results:
    """Measure, print and write the results.

    Raises:
        ConfigError, DataError, ModelError: the input is wrong; nothing was asked.
        RunError: some model has no result for some task; the others are written.
    """
    config = choice.applied_to(config)
    check_output_folder(config.output)
    with own_output(config.output), closing(EngineProcesses(config.sampling.devices)) as processes:
        work = prepare(config, processes)
        work.show()
        measured, failures = work.run()
        for name, found in measured.items():
            for model, each in found.items():
                write_scores(config.output, model, name, each)
                if each.lines is not None:
                    write_answers(each.lines, model, config.output / model / f"{name}.jsonl")
        results = Results(
            {model.name: str(model) for model in work.models},
            str(config.baseline),
            {
                name: task_result(measured[name], failures[name], str(config.baseline), config.max_ungraded_share)
                for name in work.tasks
            },
            _weights(work.models),
        )
        write_results(results, config.output)
    if results.failures:
        count = counted(len(results.failures), "result")
        raise RunError("\n  ".join([f"{count} missing, the others are in {config.output}:", *results.failures]))
    return results


def _weights(models: Sequence[AnyModel]) -> dict[str, str]:
    """Hash of the weights of each model that is on this machine."""
    digests = {model.name: model.weights.digest() for model in models if isinstance(model, LocalModel)}
    return {name: digest for name, digest in digests.items() if digest is not None}


def show_plan(config: EvalConfig, choice: Choice) -> None:
    """`--dry-run`: check everything that can be checked without loading weights, and print the plan.

    Raises:
        ConfigError, DataError, ModelError: as `evaluate`.
    """
    config = choice.applied_to(config)
    check_output_folder(config.output)
    require_unowned(config.output)
    prepare(config, EngineProcesses(config.sampling.devices)).show()
    console.print("nothing was asked (--dry-run)")


@dataclass(frozen=True)
class Work:
    """Everything that is to be done, checked but not begun.

    Attributes:
        jobs: by model and task.
        processes: in which the models' engines run.
    """

    models: Sequence[AnyModel]
    tasks: Mapping[str, LoadedTask]
    jobs: Mapping[tuple[str, str], Job]
    processes: EngineProcesses

    def show(self) -> None:
        """Print tasks and models, and how much is to be done."""
        for name, task in self.tasks.items():
            console.print(f"task {name}: {'all rows' if task.size is None else counted(task.size, 'prompt')}")
        for model in self.models:
            missing = [name for name in self.tasks if not self.jobs[model.name, name].is_done]
            told = f"to do: {', '.join(missing)}" if missing else "all answers are there"
            console.print(f"model {model.name}: {model}; {told}")

    def run(self) -> tuple[dict[str, dict[str, Measured]], dict[str, dict[str, str]]]:
        """What each model came to in each task, and why some did not, by task and model."""
        measured: dict[str, dict[str, Measured]] = {name: {} for name in self.tasks}
        failures: dict[str, dict[str, str]] = {name: {} for name in self.tasks}
        for model in self.models:
            jobs = {name: self.jobs[model.name, name] for name in self.tasks}
            if not isinstance(model, LocalModel):
                self.processes.close()
            else:
                model.longest = max((job.longest for job in jobs.values() if not job.is_done), default=0)
            with closing(model):
                for name, job in jobs.items():
                    console.print(f"{model.name}: {name}")
                    try:
                        measured[name][model.name] = job.run()
                    except (ConfigError, DataError):
                        raise
                    except ToolkitError as error:
                        failures[name][model.name] = str(error)
                        console.print(f"{model.name}: {name} failed: {error}")
                        model.close()  # the next task opens it again
        return measured, failures


def prepare(config: EvalConfig, processes: EngineProcesses) -> Work:
    """Read and check tasks and models; nothing is asked, and no weights are loaded.

    Args:
        processes: in which the models' engines will run.

    Raises:
        ConfigError, DataError, ModelError: something is wrong.
    """
    setting = Setting(
        folder=config.output / KEPT,
        sampling=config.sampling,
        graders=config.graders,
        allow_code_execution=config.allow_code_execution,
        skip_unusable=config.on_bad_record == "skip",
    )
    tasks = {name: task.load(name, setting) for name, task in config.tasks.items()}
    models = [open_model(name, choice, config.sampling, processes) for name, choice in config.models.items()]
    jobs = {(model.name, name): task.job(model) for model in models for name, task in tasks.items()}
    return Work(models, tasks, jobs, processes)


def write_answers(kept: Path, model: str, path: Path) -> None:
    """Copy the kept answers of a task, each with the model's name."""
    with output_lines(path) as write:
        for line in Grades(kept):
            write({"model": model, **line})


def write_results(results: Results, output: Path) -> None:
    """Print the tables, and write `results.json`, `comparison.md` and `report.html`."""
    for table in result_tables(results):
        console.print(table, soft_wrap=False)
    atomic_write_text(output / RESULTS, json.dumps(results.as_json(), indent=2, ensure_ascii=False) + "\n")
    atomic_write_text(output / COMPARISON, markdown(results))
    write_report(results, output / REPORT)
    console.print(f"wrote {RESULTS}, {COMPARISON} and {REPORT} in {output}")
