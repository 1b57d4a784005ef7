"""A model with its own end-of-turn token and no system messages: trained, merged and used for generation."""

import json

import pytest
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, set_seed

from posttrain.config.load import load_config
from posttrain.conversation.messages import parse_conversation
from posttrain.errors import ConfigError
from posttrain.inference.config import load_inference_config
from posttrain.inference.load import load_text
from posttrain.inference.weights import choose_weights
from posttrain.merge.merge import merge
from posttrain.predict.generate import predict
from posttrain.predict.plan import PredictJob
from posttrain.sft.config import SFTConfig
from posttrain.sft.train import train

TEMPLATE = (
    "{{ bos_token }}"
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}"
    "{{ '<turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + m.content | trim + '</turn>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<turn>model\\n' }}{% endif %}"
)


@pytest.fixture
def base(tiny_model, tmp_path):
    return own_turns(tiny_model, tmp_path / "base", TEMPLATE, ["<turn>", "</turn>"])


def own_turns(tiny_model, folder, template, control):
    """A tiny random model with this template; its eos ends texts, and its generation config names only the eos."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.add_special_tokens({"bos_token": "<bos>", "eos_token": "<eos>", "additional_special_tokens": control})
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    shape = {"vocab_size": len(tokenizer), "bos_token_id": tokenizer.bos_token_id}
    config = LlamaConfig.from_pretrained(tiny_model, eos_token_id=tokenizer.eos_token_id, **shape)
    set_seed(0)
    LlamaForCausalLM(config).float().save_pretrained(folder)
    return folder


def test_turns_are_trained_and_generated_with_the_templates_own_end(write_config, base, tmp_path):
    rows = [{"prompt": f"How many is {number}?", "completion": "one two"} for number in range(12)]
    config = write_config(
        model={"name": str(base), "dtype": "float32"},
        lora={"r": 8, "modules_to_save": ["embed_tokens", "lm_head"]},
        chat={"max_length": 64, "template": "tokenizer"},
        datasets={"a": {"path": "a.jsonl"}},
        stages=[{"name": "one", "until_step": 40, "mix": {"a": 1}}],
        generation={"max_new_tokens": 12},
    )
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train(load_config(config, SFTConfig), "run")
    (ledger,) = json.loads((tmp_path / "runs" / "run" / "ledger.json").read_text())
    assert (ledger["answers"], ledger["answers_with_end"]) == (12, 12)

    verified = merge(config).verification
    assert verified is not None
    assert verified.top1_agreement == 1.0

    asked, output = tmp_path / "asked.jsonl", tmp_path / "answers.jsonl"
    asked.write_text(json.dumps({"prompt": "How many is 3?"}) + "\n")
    for weights in ("adapter", "merged"):
        job = PredictJob(
            choose_weights(config, weights), load_inference_config(config).generation, asked, output, overwrite=True
        )
        predict(job)
        answer = json.loads(output.read_text())
        assert (answer["messages"][-1]["content"], answer["stop_reason"]) == ("one two", "end")


def test_a_file_of_ones_own_is_trained_and_saved_and_may_then_go(write_config, base, tmp_path):
    mood = {"'model'": "'model ' + mood", "'<turn>model\\n'": "'<turn>model ' + mood + '\\n'"}
    template = TEMPLATE
    for old, new in mood.items():
        template = template.replace(old, new)
    file = tmp_path / "mine.jinja"
    file.write_text(template)
    chat = {"max_length": 256, "template": "mine.jinja", "template_variables": {"mood": "zz"}}
    config = write_config(model={"name": str(base)}, chat=chat)
    train(load_config(config, SFTConfig, ["training.max_steps=2"]), "run")
    file.write_text(template.replace("<turn>", "<turn> "))
    with pytest.raises(ConfigError, match=r"would not be the same run.*\n  chat\.template: \{\{ bos_token"):
        train(load_config(config, SFTConfig, ["training.max_steps=2"]), "run", resume=True)

    file.unlink()
    run = tmp_path / "runs" / "run"
    merge(run / "config.yaml")
    asked = [{"role": "user", "content": "one"}]
    expected = "<bos><turn>user\none</turn>\n<turn>model zz\n"
    for weights, folder in (("adapter", run), ("merged", run / "merged")):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True) == expected
        chosen = choose_weights(run / "config.yaml", weights)
        text = load_text(chosen.model, chosen.chat)
        assert text.tokenizer.decode(text.encoder.prompts([parse_conversation(asked)])[0]) == expected


def test_every_turn_is_trained_where_the_eos_stands_behind_the_last_one_alone(
    write_config, tiny_model, trl_template, tmp_path
):
    control = ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
    folder = own_turns(tiny_model, tmp_path / "phi", trl_template("phi3"), control)
    turns = ["one", "two", "three", "four", "five", "six"]
    messages = [{"role": "assistant" if at % 2 else "user", "content": text} for at, text in enumerate(turns)]
    config = write_config(
        model={"name": str(folder), "dtype": "float32"},
        lora={"r": 8, "modules_to_save": ["embed_tokens", "lm_head"]},
        chat={"max_length": 64, "template": "tokenizer"},
        datasets={"a": {"path": "a.jsonl"}},
        stages=[{"name": "one", "until_step": 2, "mix": {"a": 1}}],
    )
    (tmp_path / "a.jsonl").write_text((json.dumps({"messages": messages}) + "\n") * 4)
    train(load_config(config, SFTConfig), "run")
    (ledger,) = json.loads((tmp_path / "runs" / "run" / "ledger.json").read_text())
    assert (ledger["answers"], ledger["answers_with_end"]) == (12, 12)
