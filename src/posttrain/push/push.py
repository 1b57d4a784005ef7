"""`toolkit-push`: send what was trained to a Hugging Face hub, with a card made of what was measured."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from posttrain.base.console import console
from posttrain.base.files import content_digest
from posttrain.base.locks import holder_of, in_use, own_output, require_unowned
from posttrain.base.text import counted
from posttrain.config.sections.push import require_repo, require_revision
from posttrain.errors import ConfigError
from posttrain.hub.base_model import BaseModel, base_model, require_base
from posttrain.hub.card import Contents, Kind, model_card
from posttrain.hub.facts import RunFacts, exported_step
from posttrain.hub.package import ADAPTER_CONFIG, Package, file_package, is_adapter, model_package
from posttrain.hub.repository import Pushed, Repository, Target
from posttrain.inference.weights import ChosenWeights, choose_weights
from posttrain.push.scores import scores_of
from posttrain.runs.checkpoints import find_checkpoint
from posttrain.runs.directory import RunDirectory
from posttrain.runs.trained_run import TrainedRun, load_trained_run

PushedWeights = Literal["adapter", "merged", "gguf"]
"""What is pushed: what was trained, the merged model, or the GGUF files."""

RETRY_SECONDS = 120.0
"""How long a failing hub is asked again."""


@dataclass(frozen=True)
class Job:
    """What to push, and to where.

    Attributes:
        folder: the exported files, or a checkpoint.
        places: what must not be written meanwhile.
    """

    repository: Repository
    run: TrainedRun
    step: int
    folder: Path
    package: Package
    card: str
    base: BaseModel
    kind: Kind
    places: tuple[Path, ...]

    @property
    def message(self) -> str:
        """The commit's."""
        return f"{self.run.directory.path.name}, step {self.step}: {self.kind}"


def push(  # noqa: PLR0913 - one parameter for each option of the command
    config_path: Path,
    repo: str,
    *,
    weights: PushedWeights = "adapter",
    revision: str = "main",
    public: bool = False,
    checkpoint: str | None = None,
    base: str | None = None,
    licence: str | None = None,
    evaluations: Sequence[Path] = (),
    run_name: str | None = None,
    model_index: int | None = None,
    overrides: Sequence[str] = (),
    dry_run: bool = False,
    retry_seconds: float = RETRY_SECONDS,
) -> Pushed | None:
    """Push what the run of `config_path` trained.

    Args:
        repo: as owner/name; it is made if it does not exist.
        revision: a branch, which is made if it does not exist.
        public: whether everybody may see the repository.
        checkpoint: a step, or `latest`; None takes what the run exported at its end.
        base: Hugging Face id of the base; None takes `model.name` if it is one.
        licence: of the base, in the hub's spelling; None takes the one that the base's files or page name.
        evaluations: outputs of toolkit-eval whose scores of these weights go on the card.
        dry_run: check, also at the hub, print what would be pushed and the card, and return None.

    Raises:
        ConfigError: there is no such run, merged model, export or checkpoint, it is damaged, or in work; the base or
            its licence is not known; the token is refused, or the repository is public and need not be.
        ModelError: a folder does not hold a model.
        RunError: the hub failed for too long.
        ServerError: the hub cannot be reached.
    """
    repository = Repository(Target(require_repo(repo), require_revision(revision), public))
    run = load_trained_run(config_path, run_name, overrides, model_index)
    if (holder := holder_of(run.directory.lock)) is not None:
        raise in_use(
            f"{run.directory.path} is being trained", run.directory.lock, holder, "set run.push to push as it trains"
        )
    which = {"checkpoint": checkpoint, "run_name": run_name, "model_index": model_index, "overrides": overrides}
    chosen = choose_weights(config_path, "merged" if weights == "merged" else "adapter", **which)
    named = base_model(run.model, base, licence, repository.licence_of)
    job = _job(repository, run, chosen, named, weights, checkpoint, evaluations)
    return _preview(job) if dry_run else _send(job, retry_seconds)


def _preview(job: Job) -> None:
    """Check all that a push checks first, and show what it would send."""
    for place in job.places:
        require_unowned(place)
    _show_plan(job, job.repository.check())
    sys.stdout.write(job.card)
    console.print("this is the card; nothing was pushed (--dry-run)")


def _send(job: Job, retry_seconds: float) -> Pushed:
    with ExitStack() as stack:
        for place in job.places:
            stack.enter_context(own_output(place))
        job.repository.create()
        _show_plan(job, True)
        pushed = job.repository.push(job.package, job.message, retry_seconds)
    console.print(described(pushed, job.repository), markup=False)
    return pushed


def described(pushed: Pushed, repository: Repository) -> str:
    """What a push came to, in a line."""
    place = f"{repository.endpoint}/{repository.target.repo} at {repository.target.revision}"
    if not pushed.uploaded and not pushed.removed:
        return f"all {pushed.there} files were at {place} already, in commit {pushed.commit[:10]}; nothing was uploaded"
    removed = f", removed {counted(len(pushed.removed), 'file')} of another model" if pushed.removed else ""
    return f"pushed {counted(pushed.uploaded, 'file')} to {place}, commit {pushed.commit[:10]}{removed}"


def _job(
    repository: Repository,
    run: TrainedRun,
    chosen: ChosenWeights,
    base: BaseModel,
    weights: PushedWeights,
    checkpoint: str | None,
    evaluations: Sequence[Path],
) -> Job:
    directory = run.directory
    if checkpoint is None:
        step, folder = exported_step(directory), directory.path
    else:
        found = find_checkpoint(directory, checkpoint)
        step, folder = found.step, found.path
    facts = RunFacts.read(directory, step)
    place = directory.path / "push"
    scores = scores_of(chosen.digest(), evaluations) if evaluations else ()
    if weights == "gguf":
        exports = _exports(directory, folder)
        contents = Contents("gguf", repository.target, base, scores, tuple(report for _, report in exports))
        files = [file for file, _ in exports]
        modelfiles = [each for file in files if (each := file.with_suffix(".Modelfile")).is_file()]
        card = model_card(facts, contents)
        package, places = file_package([*files, *modelfiles], card), (place, *files)
    else:
        source = Path(chosen.model.name) if weights == "merged" else folder
        kind: Kind = "merged" if weights == "merged" else "adapter" if is_adapter(folder) else "whole"
        _require_fresh(source, folder, weights)
        if kind == "adapter":
            require_base(base, "--base")
        contents = Contents(kind, repository.target, base, scores)
        card = model_card(facts, contents)
        package = model_package(source, card, base.repo, base.revision)
        places = (place, source) if weights == "merged" else (place,)
    return Job(repository, run, step, folder, package, card, base, contents.kind, places)


def _require_fresh(source: Path, folder: Path, weights: PushedWeights) -> None:
    """ConfigError if a merged model is older than the adapter that it was made from."""
    made, trained = source / "config.json", folder / ADAPTER_CONFIG
    if weights == "merged" and trained.is_file() and made.stat().st_mtime < trained.stat().st_mtime:
        raise ConfigError(f"{source} is older than the adapter in {folder}; merge again with toolkit-merge --overwrite")


def _exports(run: RunDirectory, folder: Path) -> list[tuple[Path, Mapping[str, Any]]]:
    """The GGUF files that toolkit-export wrote of the weights in `folder`, with their reports.

    Raises:
        ConfigError: there are none, or one is not what was checked, or of earlier weights.
    """
    name = folder.name if folder == run.path else f"{run.path.name}-{folder.name}"
    found = []
    for report in sorted(run.path.glob(f"{name}-*.export.json")):
        told = json.loads(report.read_text(encoding="utf-8"))
        file = run.path / told["file"]
        if told["file"] == f"{name}-{told['type']}.gguf":  # not of a checkpoint, whose name begins alike
            found.append((file, told))
    if not found:
        raise ConfigError(f"there is no GGUF file of {folder} in {run.path}; write one with toolkit-export")
    weights = next(folder.glob("*.safetensors"))
    for file, told in found:
        if not file.is_file() or content_digest(file) != told["blake2b"]:
            raise ConfigError(
                f"{file} is not the file that was checked; write it again with toolkit-export --overwrite"
            )
        if file.stat().st_mtime < weights.stat().st_mtime:
            raise ConfigError(f"{file} is older than {weights}; write it again with toolkit-export --overwrite")
    return found


def _show_plan(job: Job, exists: bool) -> None:
    target, package = job.repository.target, job.package
    seen = "public" if target.public else "private"
    console.print(f"weights     {job.folder}, step {job.step} ({job.kind})")
    console.print(f"base        {job.base.repo or job.base.name}, licence {job.base.licence}")
    console.print(f"to          {job.repository.endpoint}/{target.repo} at {target.revision}, {seen}")
    if not exists:
        console.print("            which does not exist yet")
    console.print(f"files       {', '.join(sorted(package.files))} ({package.size / 2**20:.1f} MiB)")
