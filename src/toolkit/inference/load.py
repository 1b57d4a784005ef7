"""Make an engine from a model config and, where there is one, an adapter."""

from pathlib import Path
from typing import Any

from toolkit.core.config.chat import ChatConfig
from toolkit.core.config.model import ModelConfig
from toolkit.core.conversation_encoder import ConversationEncoder, conversation_encoder
from toolkit.core.models.load import choose_backend
from toolkit.inference.engine import Engine


def load_engine(
    model: ModelConfig, adapter: Path | None, chat: ChatConfig, batch_size: int
) -> tuple[Engine, ConversationEncoder, Any]:
    """An engine, the encoder that makes its prompts, and its tokenizer.

    Raises:
        ModelError: the model or adapter cannot be loaded, or cannot end a turn.
    """
    loaded = choose_backend(model).load_for_inference(model, adapter, chatml=chat.template == "chatml")
    from toolkit.inference.hf import HfEngine  # heavy, and after the backend was chosen

    encoder = conversation_encoder(chat, loaded.tokenizer)
    engine = HfEngine(loaded.model, loaded.tokenizer, encoder.end_ids, loaded.compute_dtype, batch_size)
    return engine, encoder, loaded.tokenizer
