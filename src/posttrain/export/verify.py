"""Compare a GGUF file with its model in every respect that matters to whoever asks it."""

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.model import ModelConfig
from posttrain.conversation.encoder import conversation_encoder
from posttrain.conversation.messages import Conversation
from posttrain.conversation.saved_template import use_trained_template
from posttrain.errors import DataError
from posttrain.export.answers import ANSWER_TOKENS, compare, require_within
from posttrain.export.file_checks import ExpectedText, check_file
from posttrain.export.gguf_types import LIMITS, GgufType
from posttrain.export.llama_cpp import LlamaCpp
from posttrain.export.server import llama_server
from posttrain.export.text_checks import check_text
from posttrain.models.hf import HfBackend


def verify(
    file: Path,
    model: ModelConfig,
    chat: ChatConfig,
    *,
    tools: LlamaCpp,
    kind: GgufType,
    prompts: Sequence[Conversation],
) -> dict[str, Any]:
    """Check the file, of type `kind`, against the merged model that `model` names; returns the checks' numbers.

    Cheap checks come first, and the model is loaded last, when llama.cpp's server has ended.

    Raises:
        DataError: a prompt is longer than the config allows.
        RunError: a check failed; the message begins with what is wrong: tensors, end token, control tokens, chat
            template, token ids or answers.
    """
    local = model.model_copy(update={"dtype": "float32", "quantization": "none", "backend": "hf"})
    chatml = chat.template == "chatml"
    tokenizer: Any = HfBackend().load_tokenizer(local, chatml=chatml)
    use_trained_template(tokenizer, chat)
    encoder = conversation_encoder(chat, tokenizer)
    asked = encoder.prompts(prompts)
    if (longest := max(map(len, asked))) > chat.max_length:
        raise DataError(
            f"--prompts: a prompt has {longest} tokens, above chat.max_length {chat.max_length}; shorten it"
        )
    controls = encoder.end_ids | encoder.start_ids
    tensors = check_file(file, Path(local.name), ExpectedText(tokenizer.chat_template, encoder.end_ids, controls))
    with llama_server(tools, file, longest + ANSWER_TOKENS + 1) as server:
        names = tools.names(server.version())
        texts = check_text(server, tokenizer, encoder, chat)
        answers = [server.answer(prompt, ANSWER_TOKENS) for prompt in asked]
    loaded = HfBackend().load_for_inference(local, None, chatml=chatml)
    found = compare(loaded.model, asked, answers)
    del loaded
    gc.collect()  # a model's modules form reference cycles
    limits = LIMITS[kind]
    require_within(found, limits, kind)
    allowed = {"kl_limit": limits.kl, "agreement_limit": limits.agreement}
    return {"llama_cpp": names, "tensors": tensors, "text": texts, "answers": {**found.as_json(), **allowed}}
