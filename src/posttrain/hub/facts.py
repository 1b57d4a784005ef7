"""What a run's folder says about its weights after a given step, for the model card."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from posttrain.config.load import read_raw
from posttrain.errors import ConfigError
from posttrain.hub.package import model_files
from posttrain.runs.checkpoints import Checkpoint, file_faults, find_checkpoint, read_state
from posttrain.runs.directory import RunDirectory
from posttrain.runs.manifest import read_manifest
from posttrain.runs.metrics import read_metrics

_METHODS = {"toolkit-sft": "supervised fine-tuning", "toolkit-dpo": "preference optimisation"}
_PACKAGES = ("posttrain-toolkit", "torch", "transformers", "peft")


@dataclass(frozen=True)
class RunFacts:
    """A run until a step.

    Attributes:
        name: the run's.
        config: its resolved config.
        manifest: as the run wrote it.
        rows: the lines of metrics.jsonl until `step`.
    """

    name: str
    step: int
    config: Mapping[str, Any]
    manifest: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]

    @classmethod
    def read(cls, run: RunDirectory, step: int) -> "RunFacts":
        """Read the run's files; ConfigError if one is damaged."""
        rows = tuple(row for row in read_metrics(run.metrics) if row["step"] <= step)
        return cls(run.path.name, step, read_raw(run.config), read_manifest(run.manifest), rows)

    @property
    def tag(self) -> str:
        """The short name of the method."""
        return {"toolkit-sft": "sft", "toolkit-dpo": "dpo"}.get(self.manifest["command"], "reinforcement-learning")

    @property
    def method(self) -> str:
        """The method in words."""
        named = _METHODS.get(self.manifest["command"], "reinforcement learning")
        which = self.config.get("algorithm") or (self.config.get("method") or {}).get("type")
        return f"{named} ({which})" if which else named

    @property
    def datasets(self) -> Mapping[str, str]:
        """Names and digests of the data, without their places."""
        identity = self.manifest["identity"]
        found = dict(identity.get("datasets") or {})
        if identity.get("validation.dataset"):
            found["held-out rows"] = identity["validation.dataset"]
        if identity.get("dataserver"):
            found["prompts and rewards of the dataserver"] = identity["dataserver"]
        return found

    @property
    def stages(self) -> Iterator[tuple[str, str, str]]:
        """Name, end and mix of each stage of the curriculum."""
        for stage in self.config.get("stages") or ():
            end = f"step {stage['until_step']}" if stage.get("until_step") else f"{stage.get('epochs')} epochs"
            mix = ", ".join(f"{name} × {weight:g}" for name, weight in (stage["mix"] or {}).items())
            yield stage["name"], end, mix or "every row of all data sets"

    @property
    def settings(self) -> Iterator[tuple[str, str]]:
        """The settings that matter most, with their values."""
        training, lora, chat = self.config["training"], self.config.get("lora"), self.config["chat"]
        yield "optimizer steps", str(self.step)
        for name in ("tokens", "trained_tokens"):
            if total := sum(row.get(name, 0) for row in self.rows if "loss" in row):
                yield name.replace("_", " "), f"{total:,}"
        yield "rows per step", str(training["rows_per_step"])
        yield "learning rate", f"{training['learning_rate']:g}, {_name(training['schedule'], 'kind')}"
        yield "optimizer", _name(training["optimizer"], "class")
        yield "seed", str(training["seed"])
        if self.config["model"].get("adapter"):
            yield "trained weights", "an earlier adapter, continued"
        elif lora is None:
            yield "trained weights", "all"
        else:
            start = f", started from {lora['init']}" if lora.get("init") else ""
            yield "trained weights", f"LoRA, r {lora['r']}, alpha {lora['alpha']:g}{start}"
        yield "longest row", f"{chat['max_length']} tokens"

    @property
    def measures(self) -> Iterator[tuple[str, int, float]]:
        """Losses and rewards during training: name, step and value of the last of each."""
        names = {"loss": "training loss", "reward": "training reward"}
        names |= {"eval_loss": "held-out loss", "eval_reward": "held-out reward"}
        for key, words in names.items():
            values = [(row["step"], row[key]) for row in self.rows if isinstance(row.get(key), int | float)]
            if values:
                yield words, *values[-1]

    @property
    def packages(self) -> Iterator[tuple[str, str]]:
        """The packages that matter most, with their versions."""
        known = self.manifest.get("packages") or {}
        return ((name, known[name]) for name in _PACKAGES if name in known)


def exported_step(run: RunDirectory) -> int:
    """The step of the weights that a finished run left in its folder.

    Raises:
        ConfigError: the run has not finished, or its files are not those of the checkpoint they were copied from.
    """
    try:
        name = json.loads(run.result.read_text(encoding="utf-8"))["exported"]
        step = int(name.removeprefix("checkpoint-"))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise ConfigError(
            f"the run in {run.path} has not finished; finish it with --resume, or push a checkpoint with --checkpoint"
        ) from None
    folder = run.path / name
    if folder.is_dir():  # it may have been removed since
        recorded = _recorded(find_checkpoint(run, str(step)))
        faults = list(file_faults(run.path, recorded, contents=True))
        if faults:
            raise ConfigError(
                f"{run.path} is damaged: {'; '.join(faults)}; push {name} itself with --checkpoint {step}"
            )
    return step


def checkpoint_digest(checkpoint: Checkpoint) -> str:
    """Hash of the model in a checkpoint, from the digests that were taken when it was written."""
    described = sorted((name, facts["blake2b"]) for name, facts in _recorded(checkpoint).items())
    return hashlib.blake2b(json.dumps(described).encode(), digest_size=16).hexdigest()


def _recorded(checkpoint: Checkpoint) -> Mapping[str, Mapping[str, Any]]:
    """Size and digest of each file of the model."""
    files = read_state(checkpoint.path)["files"]
    return {name: files[name] for name in model_files(checkpoint.path) if name in files}


def _name(choice: Any, key: str) -> str:
    """A setting that is a name, or a section whose `key` is one."""
    return choice if isinstance(choice, str) else choice[key]
