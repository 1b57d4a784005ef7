"""Make an engine from a model config and, where there is one, an adapter."""

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from posttrain.base.extras import require_extra
from posttrain.config.sections.chat import ChatConfig
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


def load_engine(model: ModelConfig, adapter: Path | None, chat: ChatConfig, batch_size: int) -> Engine:
    """The engine for a model with the adapter in `adapter` on top; `batch_size` counts completions.

    Raises:
        ModelError: the model or adapter cannot be loaded, or cannot end a turn.
    """
    loaded = choose_backend(model).load_for_inference(model, adapter, chatml=chat.template == "chatml")
    from posttrain.inference.hf import HfEngine  # heavy, and after the backend was chosen

    ends = end_ids(loaded, conversation_encoder(chat, loaded.tokenizer))
    return HfEngine(loaded.model, loaded.tokenizer, ends, batch_size)


@contextmanager
def vllm_engine(model: ModelConfig, adapter: Path | None, chat: ChatConfig, max_length: int) -> Iterator[Engine]:
    """vLLM with the model, and the adapter in `adapter` folded into its weights, in a folder that ends with the block.

    Args:
        max_length: most tokens that a prompt and its answer have together.

    Raises:
        ConfigError: vLLM is not installed.
        ModelError: the model or adapter cannot be loaded, cannot end a turn, or cannot hold `max_length` tokens.
    """
    require_extra("vllm", "generation.engine: vllm")
    loaded = choose_backend(model).load_for_inference(model, adapter, chatml=chat.template == "chatml")
    from posttrain.inference.vllm import VllmEngine  # heavy, and after the backend was chosen
    from posttrain.inference.vllm_load import VllmOptions
    from posttrain.inference.vllm_weights import write_merged_weights

    ends = end_ids(loaded, conversation_encoder(chat, loaded.tokenizer))
    options = VllmOptions(dtype=str(loaded.compute_dtype).removeprefix("torch."), max_length=max_length)
    with TemporaryDirectory(prefix="posttrain-weights-") as name:
        folder = Path(name)
        loaded.tokenizer.save_pretrained(folder)
        write_merged_weights(loaded.model, folder, loaded.compute_dtype)
        del loaded  # or its weights would be in memory twice
        engine = VllmEngine(folder, ends, options)
        with closing(engine):
            yield engine


def end_ids(loaded: LoadedModel, encoder: ConversationEncoder) -> frozenset[int]:
    """The tokens that end a completion: that end or begin a turn, and those that the model and its tokenizer name."""
    named = (loaded.tokenizer.eos_token_id, loaded.model.generation_config.eos_token_id)
    return encoder.end_ids.union(encoder.start_ids, *map(_as_ids, named))


def _positions(model: ModelConfig) -> int | None:
    from transformers import AutoConfig  # heavy, and after the backend was chosen

    from posttrain.models.loading import model_files

    config = AutoConfig.from_pretrained(
        model_files(model), revision=model.revision or "main", trust_remote_code=model.trust_remote_code
    )
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def _as_ids(value: Any) -> Iterable[int]:
    if value is None:
        return ()
    return value if isinstance(value, list) else (value,)
