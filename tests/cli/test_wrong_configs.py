"""Wrong values and keys in a config: one message with the line, the key and a remedy."""

from collections.abc import Callable
from pathlib import Path

import pytest

# What is wrong: the text to replace in the config (empty: append as line 18), its replacement, and the message.
WRONG_VALUES = {
    "a misspelled key": (
        "learning_rate:",
        "learning_rat:",
        "run.yaml:17: training.learning_rat: unknown key; did you mean learning_rate?",
    ),
    "a key that stands elsewhere": (
        "max_length: 64",
        "warmup_steps: 1",
        "run.yaml:3: chat.warmup_steps: unknown key here; did you mean training.warmup_steps?",
    ),
    "text for a number": (
        "rows_per_step: 4",
        "rows_per_step: many",
        "run.yaml:15: training.rows_per_step: should be a valid integer, found 'many'",
    ),
    "true for a number": (
        "learning_rate: 1e-3",
        "max_steps: true",
        "run.yaml:17: training.max_steps: should be a valid integer, found true",
    ),
    "a fraction for an integer": (
        "max_length: 64",
        "max_length: 64.5",
        "run.yaml:3: chat.max_length: should be a valid integer, got a number with a fractional part, found 64.5",
    ),
    "a number that is too small": (
        "learning_rate: 1e-3",
        "learning_rate: 0",
        "run.yaml:17: training.learning_rate: should be greater than 0, found 0",
    ),
    "a number that is none": (
        "learning_rate: 1e-3",
        "learning_rate: .nan",
        "run.yaml:17: training.learning_rate: should be a finite number, found nan",
    ),
    "a choice in capitals": (
        "backend: hf",
        "backend: HF",
        "run.yaml:1: model.backend: should be 'auto', 'hf' or 'unsloth', found 'HF'; did you mean hf?",
    ),
    "a start of an adapter that there is none of": (
        "backend: hf}",
        "backend: hf}\nlora: {init: loftq}",
        "run.yaml:2: lora.init: should be 'pissa', 'pissa_niter_16' or 'olora', found 'loftq'",
    ),
    "a value for a section": (
        "{path: sums.jsonl}",
        "sums.jsonl",
        "run.yaml:5: datasets.sums: should be a section with path, found 'sums.jsonl'",
    ),
    "a section that is empty": (
        "  max_length: 64\n",
        "",
        "run.yaml:2: chat: the section is empty; write its keys below it, or remove the line",
    ),
    "no model": (
        "model: {name: tiny, backend: hf}",
        "on_bad_record: skip",
        "run.yaml:1: model: missing: this key is required",
    ),
    "no data": (
        "  sums: {path: sums.jsonl}\n  words: {path: words.jsonl}\n",
        "  {}\n",
        "run.yaml:4: datasets: should have at least 1 item, found {}",
    ),
    "a file to extend that is not there": (
        "",
        "extends: base.yaml",
        "run.yaml:18: extends: there is no file base.yaml; a path starts from the folder of the file that names it",
    ),
    "a file that extends itself": (
        "",
        "extends: [run.yaml]",
        "run.yaml:18: extends: the file would extend itself: run.yaml → run.yaml",
    ),
    "a number of files to extend": (
        "",
        "extends: 2",
        "run.yaml:18: extends: should be a file or a list of files, found 2",
    ),
    "files to extend within a section": (
        "max_length: 64",
        "extends: base.yaml",
        "run.yaml:3: chat.extends: unknown key here; extends belongs at the top of a file",
    ),
    "a negative weight": (
        "mix: {sums: 1}",
        "mix: {sums: -1}",
        "run.yaml:10: stages.0.mix.sums: should be greater than or equal to 0, found -1",
    ),
    "weights that are all 0": (
        "mix: {sums: 1}",
        "mix: {sums: 0}",
        "run.yaml:10: stages.0.mix: all weights are 0, so there is nothing to draw; raise one of them",
    ),
    "two names for one column": (
        "{path: sums.jsonl}",
        "{path: sums.jsonl, columns: {prompt: completion}}",
        "run.yaml:5: datasets.sums.columns: completion cannot mean two things at once; rename one of them",
    ),
    "a run's name that leads out of the folder": (
        "",
        "run: {name: ../elsewhere}",
        "run.yaml:18: run.name: a run's name must be a single folder name without a slash, not '../elsewhere'",
    ),
    "rows that go through the model in another way": (
        "learning_rate: 1e-3",
        "batching: packed",
        "run.yaml:17: training.batching: should be 'auto', 'padding_free' or 'by_length', found 'packed'",
    ),
    "a label of which nothing is left": (
        "learning_rate: 1e-3",
        "label_smoothing: 1",
        "run.yaml:17: training.label_smoothing: should be less than 1, found 1",
    ),
    "a format of another name": (
        "{path: sums.jsonl}",
        "{path: sums.jsonl, format: share_gpt}",
        "run.yaml:5: datasets.sums.format: should be 'auto', 'columns', 'sharegpt', 'alpaca', 'alpaca_prompt', "
        "'openai' or 'transcripts', found 'share_gpt'; did you mean sharegpt?",
    ),
    "columns of turns for texts without turns": (
        "{path: sums.jsonl}",
        "{path: sums.jsonl, type: text, columns: {prompt: a}}",
        "run.yaml:5: datasets.sums.columns: unknown key; did you mean column?",
    ),
    "a chat template of another name": (
        "max_length: 64",
        "template: qwen3",
        "run.yaml:3: chat.template: 'qwen3' is not a template: give chatml, tokenizer, or the path of a Jinja file "
        "(.jinja, .jinja2, .j2, .txt)",
    ),
    "a chat template that is data": (
        "max_length: 64",
        "template: {a: b}",
        "run.yaml:3: chat.template: should be text, found {'a': 'b'}",
    ),
    "variables without names": (
        "max_length: 64",
        "template_variables: [1]",
        "run.yaml:3: chat.template_variables: should be a mapping of names to values, found [1]",
    ),
    "a variable that the toolkit sets": (
        "max_length: 64",
        "template: tokenizer\n  template_variables: {messages: []}",
        "run.yaml:4: chat.template_variables: messages is set by the toolkit or the tokenizer; leave it out",
    ),
    "a variable's name with a space": (
        "max_length: 64",
        "template: tokenizer\n  template_variables: {no thinking: true}",
        "run.yaml:4: chat.template_variables: 'no thinking' cannot be a variable's name; use letters, digits and "
        "underscores",
    ),
    "a variable that is no number": (
        "max_length: 64",
        "template: tokenizer\n  template_variables: {mood: .inf}",
        "run.yaml:4: chat.template_variables.mood: should be a finite number, found inf",
    ),
    "a tag without its other half": (
        "max_length: 64",
        "solution_tags: {open: <a>}",
        "run.yaml:3: chat.solution_tags.close: missing: this key is required",
    ),
    "an empty tag": (
        "max_length: 64",
        "reasoning_tags: {open: <a>, close: ''}",
        "run.yaml:3: chat.reasoning_tags.close: should have at least 1 character, found ''",
    ),
    "a list of no layers": (
        "",
        "lora: {target_modules: []}",
        "run.yaml:18: lora.target_modules: should be 'auto' or 'all-linear'; or should have at least 1 item, found []",
    ),
}


@pytest.mark.parametrize(("old", "new", "message"), WRONG_VALUES.values(), ids=WRONG_VALUES.keys())
def test_a_wrong_value_is_told_with_its_line_and_key_and_nothing_is_written(
    old: str, new: str, message: str, edit_config: Callable[[str, str], None], refusal: Callable[..., str]
):
    edit_config(old, new)
    assert refusal("run.yaml") == message


def test_all_that_is_wrong_is_told_at_once_by_line(
    edit_config: Callable[[str, str], None], refusal: Callable[..., str]
):
    edit_config("max_length: 64", "max_length: 1\n  truncate: left")
    head, *problems = refusal("run.yaml", "--set", "training.seed=-1", "--set", "run.nmae=x").splitlines()
    assert head == "run.yaml has 4 problems:"
    assert problems == [
        "  run.yaml:3: chat.max_length: should be greater than or equal to 8, found 1",
        "  run.yaml:4: chat.truncate: unknown key; did you mean truncation?",
        "  --set training.seed=-1: training.seed: should be greater than or equal to 0, found -1",
        "  --set run.nmae=x: run.nmae: unknown key; did you mean name?",
    ]


def test_a_variable_that_the_template_does_not_mention_is_told_before_the_model_is_loaded(
    folder: Path, edit_config: Callable[[str, str], None], refusal: Callable[..., str]
):
    (folder / "mine.j2").write_text("{% for m in messages %}{{ m.content }}{{ mood }}<|im_end|>{% endfor %}")
    edit_config("max_length: 64", "template: mine.j2\n  template_variables: {enable_thinking: false}")
    told = "chat.template_variables: the chat template has no variable enable_thinking; it has mood"
    assert refusal("run.yaml") == told
