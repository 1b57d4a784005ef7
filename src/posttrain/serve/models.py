"""The models of a run by name, and those of them that are in memory."""

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.config.sections.answerers import Weights
from posttrain.config.sections.generation import GenerationConfig
from posttrain.errors import ConfigError, ModelError
from posttrain.inference.devices import open_answering
from posttrain.inference.engine import Engine
from posttrain.inference.load import ModelText, load_text
from posttrain.inference.process.specs import AnsweringSpec
from posttrain.inference.weights import ChosenWeights, choose_weights
from posttrain.runs.checkpoints import complete_checkpoints
from posttrain.runs.trained_run import load_trained_run

_KINDS: tuple[Weights, ...] = ("auto", "merged", "adapter", "base")


@dataclass(frozen=True)
class Choice:
    """A config and the run of it that is meant, as the command line has them."""

    config: Path
    run_name: str | None = None
    model_index: int | None = None
    overrides: Sequence[str] = ()

    def weights(self, kind: str) -> ChosenWeights:
        """The weights `kind`: auto, merged, adapter, base, latest or a step; errors as `choose_weights`."""
        which = {"run_name": self.run_name, "model_index": self.model_index, "overrides": self.overrides}
        for weights in _KINDS:
            if kind == weights:
                return choose_weights(self.config, weights, **which)
        if kind != "latest" and not kind.isdecimal():
            raise ConfigError(f"--weights {kind[:60]}: give {', '.join(_KINDS)}, latest, or the step of a checkpoint")
        return choose_weights(self.config, "adapter", checkpoint=kind, **which)

    def kinds(self) -> list[str]:
        """All that there may be, the checkpoints last."""
        try:
            run = load_trained_run(self.config, self.run_name, self.overrides, self.model_index).directory
        except ConfigError:
            return ["base"]  # nothing is trained yet
        return [*_KINDS, *(str(checkpoint.step) for checkpoint in complete_checkpoints(run))]


def find_models(choice: Choice, wanted: Sequence[str]) -> dict[str, ChosenWeights]:
    """The weights of each model by its name: `sft` is what `auto` takes, and `sft:base` the base.

    Without `wanted`, all that there are.

    Raises:
        ConfigError, ModelError: as `choose_weights`, for one that is wanted, or if there are none.
    """
    found: dict[str, ChosenWeights] = {}
    missing: Exception | None = None
    for kind in dict.fromkeys(wanted or choice.kinds()):
        try:
            found[choice.config.stem if kind == "auto" else f"{choice.config.stem}:{kind}"] = choice.weights(kind)
        except (ConfigError, ModelError) as error:
            if wanted:
                raise
            missing = error
    if not found and missing is not None:
        raise missing
    return found


class Models:
    """Loads models when they are asked for.

    What encodes and what decodes have a tokenizer each, since two threads must not use one at once.
    """

    def __init__(self, weights: dict[str, ChosenWeights], generation: GenerationConfig, keep: int) -> None:
        """`keep`: how many models stay in memory."""
        self.weights, self.generation = weights, generation
        self._keep = keep
        self._texts: dict[str, ModelText] = {}
        self._tokenizers: dict[str, Any] = {}
        self._engines: dict[str, tuple[Engine, ExitStack]] = {}
        """The one used last comes last."""

    def text(self, name: str) -> ModelText:
        """What encodes prompts for a model; for one thread only.

        Raises:
            ModelError: its tokenizer cannot be loaded.
        """
        if name not in self._texts:
            self._texts[name] = load_text(self.weights[name].model, self.weights[name].chat)
        return self._texts[name]

    def engine(self, name: str) -> tuple[Engine, Any]:
        """The engine of a model, and the tokenizer that decodes what it generates; for one thread only.

        Raises:
            ConfigError, ModelError: it cannot be loaded.
        """
        if name in self._engines:
            self._engines[name] = self._engines.pop(name)
        else:
            while len(self._engines) >= self._keep:
                self._engines.pop(next(iter(self._engines)))[1].close()
            self._engines[name] = self._load(name)
        return self._engines[name][0], self._tokenizers[name]

    def close(self) -> None:
        """Close all engines; to be called by the thread that uses them."""
        while self._engines:
            self._engines.popitem()[1][1].close()

    def _load(self, name: str) -> tuple[Engine, ExitStack]:
        chosen, generation = self.weights[name], self.generation
        text = load_text(chosen.model, chosen.chat)
        self._tokenizers[name] = copy.deepcopy(text.tokenizer)
        longest = text.positions or chosen.chat.max_length + generation.max_new_tokens
        spec = AnsweringSpec(
            generation.engine, chosen.model, chosen.adapter, chosen.chat, generation.batch_size, longest
        )
        with ExitStack() as stack:
            engine = stack.enter_context(open_answering(spec, generation.devices))
            return engine, stack.pop_all()
