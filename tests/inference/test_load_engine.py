"""An engine built from a config: where its answers end, its dtype, and what is known before it is loaded."""

import json
import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.engines import ENGINES, EngineName, LocalEngine
from posttrain.config.sections.model import ModelConfig
from posttrain.conversation.messages import Conversation, Message
from posttrain.errors import ModelError
from posttrain.inference.engine import Completion, Engine, GenerationRequest, Sampling, StopReason
from posttrain.inference.load import load_text, open_engine
from sharp_model import write_adapter


def config_of(folder: Path, dtype: str = "float32") -> ModelConfig:
    return ModelConfig.model_validate({"name": str(folder), "backend": "hf", "dtype": dtype})


def hf_engine(model: ModelConfig, adapter: Path | None = None) -> AbstractContextManager[Any]:
    return open_engine("hf", model, adapter, ChatConfig(), batch_size=1, max_length=64)


def first_tokens(engine: Engine, prompt: tuple[int, ...], count: int) -> Completion:
    (_, completion), *_ = engine.generate([GenerationRequest(prompt)], Sampling(count))
    return completion


def test_an_answer_also_ends_where_the_models_folder_says_that_a_text_ends(sharp_model: Path, tmp_path: Path):
    model = Path(shutil.copytree(sharp_model, tmp_path / "model"))
    prompt = tuple(range(9, 20))
    with hf_engine(config_of(model)) as engine:
        free = first_tokens(engine, prompt, 6)
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, free.token_ids[3]]}))
    with hf_engine(config_of(model)) as engine:
        ended = first_tokens(engine, prompt, 6)
    assert (ended.token_ids, ended.stop_reason) == (free.token_ids[:4], StopReason.END)


def test_text_is_known_without_the_weights(sharp_model: Path, tmp_path: Path):
    model = Path(shutil.copytree(sharp_model, tmp_path / "model"))
    (model / "model.safetensors").unlink()
    text = load_text(config_of(model), ChatConfig())
    [ids] = text.encoder.prompts([Conversation((Message("user", "one two"),))])
    assert text.tokenizer.decode(ids) == "<|im_start|>user\none two<|im_end|>\n<|im_start|>assistant\n"
    assert text.positions == 512
    with pytest.raises(ModelError):
        hf_engine(config_of(model))


def test_an_adapter_answers_in_the_dtype_of_its_base(sharp_model: Path, tmp_path: Path):
    adapter = write_adapter(sharp_model, tmp_path / "adapter")
    with hf_engine(config_of(sharp_model, "bfloat16"), adapter) as engine:
        assert {parameter.dtype for parameter in engine._model.parameters()} == {torch.bfloat16}
        assert first_tokens(engine, (5, 6, 7), 3).token_ids


def test_every_engine_that_a_config_may_name_can_be_opened_and_samples_rollouts():
    from posttrain.inference.load import _OPENERS
    from posttrain.rl.rollout.engines import open as of_rollouts

    assert set(get_args(LocalEngine)) == set(_OPENERS)
    assert set(get_args(EngineName)) == set(ENGINES) == set(of_rollouts._OPENERS)
