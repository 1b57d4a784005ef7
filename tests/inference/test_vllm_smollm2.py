"""On a real model vLLM answers like transformers, and still does after its weights are exchanged."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from loaded_model import Loaded
from peft import LoraConfig, get_peft_model

from posttrain.inference.engine import Completion, GenerationRequest, Sampling, StopReason, completion_text
from posttrain.inference.vllm import VllmEngine
from posttrain.inference.vllm_load import VllmOptions
from posttrain.models.weights.merged import write_merged_weights

END = frozenset({2})
QUESTIONS = ("What is the capital of France?", "Count from one to ten.", "What is 7 plus 8?", "Name a fruit.")


@pytest.fixture(scope="module")
def engine(smollm2_folder: Path) -> Iterator[VllmEngine]:
    # In bfloat16 two programs round differently, and the likeliest tokens are sometimes nearly tied.
    engine = VllmEngine(smollm2_folder, END, VllmOptions("float32", max_length=256, eager=True))
    yield engine
    engine.close()


@pytest.fixture
def hf(smollm2_folder: Path, load: Callable[..., Loaded]) -> Loaded:
    return load(smollm2_folder)


def asked(tokenizer: Any) -> list[GenerationRequest]:
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    ids = tokenizer.apply_chat_template(chats, add_generation_prompt=True, return_dict=False)
    return [GenerationRequest(tuple(prompt)) for prompt in ids]


def answers(engine: VllmEngine, requests: list[GenerationRequest], sampling: Sampling) -> list[Completion]:
    found = dict(engine.generate(requests, sampling))
    return [found[key] for key in sorted(found)]


def test_it_answers_as_transformers_before_and_after_new_weights(engine: VllmEngine, hf: Loaded, tmp_path: Path):
    requests = asked(hf.tokenizer)
    said = answers(engine, requests, Sampling(24))
    assert completion_text(hf.tokenizer, said[0], ()) == "The capital of France is Paris."
    assert said == hf.ask(requests, Sampling(24), end_ids=END)
    assert {completion.stop_reason for completion in said} == {StopReason.END, StopReason.LENGTH}
    torch.manual_seed(0)
    config = LoraConfig(task_type="CAUSAL_LM", r=8, target_modules="all-linear", init_lora_weights=False)
    live: Any = get_peft_model(hf.model, config)
    write_merged_weights(live, tmp_path, torch.float32)
    engine.load_weights(tmp_path)
    after = answers(engine, requests, Sampling(24))
    assert after == Loaded(live, hf.tokenizer).ask(requests, Sampling(24), end_ids=END)
    assert after != said
