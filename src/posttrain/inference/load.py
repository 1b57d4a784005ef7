"""Open an engine for a model config and an optional adapter."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from posttrain.base.extras import require_extra
from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.engines import ENGINES, LocalEngine
from posttrain.config.sections.model import ModelConfig
from posttrain.conversation.encoder import ConversationEncoder, conversation_encoder
from posttrain.inference.engine import Engine
from posttrain.models.backend import LoadedModel
from posttrain.models.load import choose_backend


@dataclass(frozen=True)
class ModelText:
    """What encodes and decodes a model's text, loaded without its weights.

    `positions` is the context length in tokens, prompt and completion together; None if the model names no limit.
    """

    tokenizer: Any
    encoder: ConversationEncoder
    positions: int | None


def load_text(model: ModelConfig, chat: ChatConfig) -> ModelText:
    """Load the tokenizer, the encoder that makes prompts, and the model's context length.

    Raises:
        ModelError: the tokenizer cannot be loaded, or cannot end a turn.
    """
    tokenizer = choose_backend(model).load_tokenizer(model, chatml=chat.template == "chatml")
    return ModelText(tokenizer, conversation_encoder(chat, tokenizer), _positions(model))


def open_engine(
    name: LocalEngine,
    model: ModelConfig,
    adapter: Path | None,
    chat: ChatConfig,
    *,
    batch_size: int,
    max_length: int,
    scratch: Path | None = None,
) -> AbstractContextManager[Engine]:
    """Open the engine `name` with a model and, if given, the adapter in `adapter`; it closes at the end of the block.

    Args:
        batch_size: completions that transformers generates at once.
        max_length: maximum number of tokens of a prompt and its completion together; an engine reserves room for them.
        scratch: folder for temporary files; that of the system if None.

    Raises:
        ConfigError: the engine is not installed.
        ModelError: the model or adapter cannot be loaded, cannot end a turn, or cannot hold `max_length` tokens.
    """
    if (extra := ENGINES[name].extra) is not None:
        require_extra(extra, f"generation.engine: {name}")
    loaded = choose_backend(model).load_for_inference(model, adapter, chatml=chat.template == "chatml")
    ends = end_ids(loaded, conversation_encoder(chat, loaded.tokenizer))
    return _OPENERS[name](loaded, ends, _Place(batch_size, max_length, scratch))


@dataclass(frozen=True)
class _Place:
    """The sizes and the folder of `open_engine`."""

    batch_size: int
    max_length: int
    scratch: Path | None


def _hf(loaded: LoadedModel, ends: frozenset[int], place: _Place) -> AbstractContextManager[Engine]:
    from posttrain.inference.hf.engine import HfEngine  # slow import, and only after the backend is chosen

    return closing(HfEngine(loaded.model, loaded.tokenizer, ends, place.batch_size))


@contextmanager
def _vllm(loaded: LoadedModel, ends: frozenset[int], place: _Place) -> Iterator[Engine]:
    """vLLM with the adapter merged into the weights, in a folder that is deleted at the end of the block."""
    from posttrain.inference.vllm import VllmEngine  # slow import, and only after the backend is chosen
    from posttrain.inference.vllm_load import VllmOptions
    from posttrain.models.weights.merged import write_merged_weights

    options = VllmOptions(dtype=str(loaded.compute_dtype).removeprefix("torch."), max_length=place.max_length)
    with TemporaryDirectory(prefix="posttrain-weights-", dir=place.scratch) as name:
        folder = Path(name)
        loaded.tokenizer.save_pretrained(folder)
        write_merged_weights(loaded.model, folder, loaded.compute_dtype)
        del loaded  # otherwise the weights would be in memory twice
        with closing(VllmEngine(folder, ends, options)) as engine:
            yield engine


_OPENERS: dict[LocalEngine, Callable[[LoadedModel, frozenset[int], _Place], AbstractContextManager[Engine]]] = {
    "hf": _hf,
    "vllm": _vllm,
}


def end_ids(loaded: LoadedModel, encoder: ConversationEncoder) -> frozenset[int]:
    """Ids that end a completion: those that end or begin a turn, and the EOS ids of the model and its tokenizer."""
    named = (loaded.tokenizer.eos_token_id, loaded.model.generation_config.eos_token_id)
    return encoder.end_ids.union(encoder.start_ids, *map(_as_ids, named))


def _positions(model: ModelConfig) -> int | None:
    from transformers import AutoConfig  # slow import, and only after the backend is chosen

    from posttrain.models.hf import model_files

    config = AutoConfig.from_pretrained(
        model_files(model), revision=model.revision or "main", trust_remote_code=model.trust_remote_code
    )
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def _as_ids(value: Any) -> Iterable[int]:
    if value is None:
        return ()
    return value if isinstance(value, list) else (value,)
