"""Make an engine from a model config and, where there is one, an adapter."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from posttrain.base.extras import require_extra
from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.engines import ENGINES, EngineName
from posttrain.config.sections.model import ModelConfig
from posttrain.conversation.encoder import ConversationEncoder, conversation_encoder
from posttrain.inference.engine import Engine
from posttrain.models.backend import LoadedModel
from posttrain.models.load import choose_backend


@dataclass(frozen=True)
class ModelText:
    """What a model makes of text, known without its weights.

    `positions` is how many tokens it can hold, prompt and completion together; None where it names no limit.
    """

    tokenizer: Any
    encoder: ConversationEncoder
    positions: int | None


def load_text(model: ModelConfig, chat: ChatConfig) -> ModelText:
    """The tokenizer, the encoder that makes prompts, and the model's limit.

    Raises:
        ModelError: the tokenizer cannot be loaded, or cannot end a turn.
    """
    tokenizer = choose_backend(model).load_tokenizer(model, chatml=chat.template == "chatml")
    return ModelText(tokenizer, conversation_encoder(chat, tokenizer), _positions(model))


def open_engine(
    name: EngineName,
    model: ModelConfig,
    adapter: Path | None,
    chat: ChatConfig,
    *,
    batch_size: int,
    max_length: int,
) -> AbstractContextManager[Engine]:
    """The engine of that name with a model, and with the adapter in `adapter` on top; it ends with the block.

    Args:
        batch_size: completions that transformers generates at once.
        max_length: most tokens that a prompt and its answer have together, for which an engine reserves room.

    Raises:
        ConfigError: the engine is not installed.
        ModelError: the model or adapter cannot be loaded, cannot end a turn, or cannot hold `max_length` tokens.
    """
    if (extra := ENGINES[name].extra) is not None:
        require_extra(extra, f"generation.engine: {name}")
    loaded = choose_backend(model).load_for_inference(model, adapter, chatml=chat.template == "chatml")
    ends = end_ids(loaded, conversation_encoder(chat, loaded.tokenizer))
    return _OPENERS[name](loaded, ends, batch_size, max_length)


def _hf(loaded: LoadedModel, ends: frozenset[int], batch_size: int, max_length: int) -> AbstractContextManager[Engine]:
    from posttrain.inference.hf import HfEngine  # heavy, and after the backend was chosen

    return closing(HfEngine(loaded.model, loaded.tokenizer, ends, batch_size))


@contextmanager
def _vllm(loaded: LoadedModel, ends: frozenset[int], batch_size: int, max_length: int) -> Iterator[Engine]:
    """vLLM with the adapter folded into the weights, in a folder that ends with the block."""
    from posttrain.inference.vllm import VllmEngine  # heavy, and after the backend was chosen
    from posttrain.inference.vllm_load import VllmOptions
    from posttrain.inference.weight_sync import write_merged_weights

    options = VllmOptions(dtype=str(loaded.compute_dtype).removeprefix("torch."), max_length=max_length)
    with TemporaryDirectory(prefix="posttrain-weights-") as name:
        folder = Path(name)
        loaded.tokenizer.save_pretrained(folder)
        write_merged_weights(loaded.model, folder, loaded.compute_dtype)
        del loaded  # or its weights would be in memory twice
        with closing(VllmEngine(folder, ends, options)) as engine:
            yield engine


_OPENERS: dict[EngineName, Callable[[LoadedModel, frozenset[int], int, int], AbstractContextManager[Engine]]] = {
    "hf": _hf,
    "vllm": _vllm,
}


def end_ids(loaded: LoadedModel, encoder: ConversationEncoder) -> frozenset[int]:
    """The tokens that end a completion: that end or begin a turn, and those that the model and its tokenizer name."""
    named = (loaded.tokenizer.eos_token_id, loaded.model.generation_config.eos_token_id)
    return encoder.end_ids.union(encoder.start_ids, *map(_as_ids, named))


def _positions(model: ModelConfig) -> int | None:
    from transformers import AutoConfig  # heavy, and after the backend was chosen

    from posttrain.models.hf import model_files

    config = AutoConfig.from_pretrained(
        model_files(model), revision=model.revision or "main", trust_remote_code=model.trust_remote_code
    )
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def _as_ids(value: Any) -> Iterable[int]:
    if value is None:
        return ()
    return value if isinstance(value, list) else (value,)
