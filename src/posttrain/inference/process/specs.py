"""What an engine process must know to build its engine, as plain data."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.engines import LocalEngine
from posttrain.config.sections.model import LoraConfig, ModelConfig
from posttrain.inference.engine import Completer, Engine, RolloutEngine
from posttrain.models.backend import TrainingSettings

if TYPE_CHECKING:  # an engine of the user's may do without torch
    from posttrain.inference.vllm_load import VllmOptions

Facts = Mapping[str, Any]

_opened = ExitStack()  # until another engine is opened, or the process ends


@dataclass(frozen=True)
class ModelSpec:
    """A copy of a model in training, which generates through transformers.

    The copy is loaded as for training, so that it has the same parameters and computes the same bits.
    """

    model: ModelConfig
    lora: LoraConfig | None
    settings: TrainingSettings
    end_ids: frozenset[int]
    batch_size: int

    def facts(self, loaded: Path | None) -> dict[str, Any]:
        """The spec as JSON can hold it."""
        return {
            "engine": "hf",
            "model": self.model.model_dump(mode="json"),
            "lora": None if self.lora is None else self.lora.model_dump(mode="json"),
            "settings": asdict(self.settings),
            "end_ids": sorted(self.end_ids),
            "batch_size": self.batch_size,
        }


@dataclass(frozen=True)
class VllmSpec:
    """vLLM with the model in `folder`."""

    folder: Path
    options: "VllmOptions"
    end_ids: frozenset[int]

    def facts(self, loaded: Path | None) -> dict[str, Any]:
        """The spec as JSON can hold it; vLLM starts with the model that was `loaded` last, if it is a whole one."""
        folder = self.folder if loaded is None or self.options.adapter_rank else loaded
        return {
            "engine": "vllm",
            "folder": str(folder),
            "options": asdict(self.options),
            "end_ids": sorted(self.end_ids),
        }


@dataclass(frozen=True)
class OwnSpec:
    """An engine of the user's: the class at `place` (`file.py:Class`), which starts with the model in `folder`."""

    place: str
    folder: Path
    end_ids: frozenset[int]
    options: Facts

    def facts(self, loaded: Path | None) -> dict[str, Any]:
        """The spec as JSON can hold it."""
        return {
            "engine": "own",
            "place": self.place,
            "folder": str(loaded or self.folder),
            "end_ids": sorted(self.end_ids),
            "options": dict(self.options),
        }


@dataclass(frozen=True)
class AnsweringSpec:
    """A trained model that answers; the fields are the arguments of `open_engine`."""

    engine: LocalEngine
    model: ModelConfig
    adapter: Path | None
    chat: ChatConfig
    batch_size: int
    max_length: int
    scratch: Path | None = None

    def open(self) -> AbstractContextManager[Engine]:
        """Open the engine in this process; errors as `open_engine`."""
        from posttrain.inference.load import open_engine

        return open_engine(
            self.engine,
            self.model,
            self.adapter,
            self.chat,
            batch_size=self.batch_size,
            max_length=self.max_length,
            scratch=self.scratch,
        )

    def facts(self, loaded: Path | None) -> dict[str, Any]:
        """The spec as JSON can hold it."""
        return {
            "engine": "answering",
            "by": self.engine,
            "model": self.model.model_dump(mode="json"),
            "adapter": None if self.adapter is None else str(self.adapter),
            "chat": self.chat.model_dump(mode="json"),
            "batch_size": self.batch_size,
            "max_length": self.max_length,
            "scratch": None if self.scratch is None else str(self.scratch),
        }


def open_spec(facts: Facts) -> Completer:
    """The engine that a spec describes; one for answering that was opened before is closed.

    Raises:
        ConfigError, ModelError: as the engine's own loader.
    """
    _opened.close()
    return _OPENERS[facts["engine"]](facts)


def _open_model(facts: Facts) -> RolloutEngine:
    from posttrain.models.load import choose_backend

    config = ModelConfig.model_validate(facts["model"])
    # Its weights come from files, so they need no start of their own.
    lora = None if facts["lora"] is None else LoraConfig.model_validate(facts["lora"]).as_saved()
    backend = choose_backend(config)  # before transformers is imported
    loaded = backend.load_for_training(config, lora, settings=TrainingSettings(**facts["settings"]))

    from posttrain.inference.loaded import LoadedModelEngine
    from posttrain.models.frozen import without_dropout

    without_dropout(loaded.model)
    return LoadedModelEngine(loaded, frozenset(facts["end_ids"]), facts["batch_size"])


def _open_vllm(facts: Facts) -> RolloutEngine:
    from posttrain.inference.vllm import VllmEngine
    from posttrain.inference.vllm_load import VllmOptions

    return VllmEngine(Path(facts["folder"]), frozenset(facts["end_ids"]), VllmOptions(**facts["options"]))


def _open_own(facts: Facts) -> RolloutEngine:
    from posttrain.inference.own_engine import OwnEngine

    return OwnEngine(facts["place"], facts["folder"], frozenset(facts["end_ids"]), facts["options"])


def _open_answering(facts: Facts) -> Completer:
    spec = AnsweringSpec(
        engine=facts["by"],
        model=ModelConfig.model_validate(facts["model"]),
        adapter=None if facts["adapter"] is None else Path(facts["adapter"]),
        chat=ChatConfig.model_validate(facts["chat"]),
        batch_size=facts["batch_size"],
        max_length=facts["max_length"],
        scratch=None if facts["scratch"] is None else Path(facts["scratch"]),
    )
    return _opened.enter_context(spec.open())


_OPENERS: dict[str, Callable[[Facts], Completer]] = {
    "hf": _open_model,
    "vllm": _open_vllm,
    "own": _open_own,
    "answering": _open_answering,
}
