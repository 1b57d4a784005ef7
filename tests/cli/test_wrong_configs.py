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
        "backend: hf}\nlora: {init: eva}",
        "run.yaml:2: lora.init: should be 'pissa', 'pissa_niter_16', 'olora' or 'loftq', found 'eva'",
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
    "tokens at once that are none": (
        "learning_rate: 1e-3",
        "micro_batch_tokens: 0",
        "run.yaml:17: training.micro_batch_tokens: should be greater than or equal to 1, found 0",
    ),
    "fewer than no tokens at once": (
        "learning_rate: 1e-3",
        "micro_batch_tokens: -5",
        "run.yaml:17: training.micro_batch_tokens: should be greater than or equal to 1, found -5",
    ),
    "no epochs": (
        "until_step: 4",
        "epochs: 0",
        "run.yaml:12: stages.1.epochs: should be greater than 0, found 0",
    ),
    "a warm-up of the whole run": (
        "learning_rate: 1e-3",
        "warmup_ratio: 1",
        "run.yaml:17: training.warmup_ratio: should be less than 1, found 1",
    ),
    "a schedule of another name": (
        "learning_rate: 1e-3",
        "schedule: wsd",
        "run.yaml:17: training.schedule: should be 'constant', 'linear', 'cosine', 'cosine_with_restarts', "
        "'polynomial', 'inverse_sqrt' or 'warmup_stable_decay'; or should be a section with kind, found 'wsd'",
    ),
    "options of no schedule": (
        "learning_rate: 1e-3",
        "schedule: {power: 2}",
        "run.yaml:17: training.schedule.kind: missing: this key is required",
    ),
    "a polynomial that does not fall": (
        "learning_rate: 1e-3",
        "schedule: {kind: polynomial, power: 0}",
        "run.yaml:17: training.schedule.power: should be greater than 0, found 0",
    ),
    "a decay longer than the run": (
        "learning_rate: 1e-3",
        "schedule: {kind: warmup_stable_decay, decay_ratio: 2}",
        "run.yaml:17: training.schedule.decay_ratio: should be less than or equal to 1, found 2",
    ),
    "restarts without a start": (
        "learning_rate: 1e-3",
        "schedule: {kind: cosine_with_restarts, cycles: 0}",
        "run.yaml:17: training.schedule.cycles: should be greater than or equal to 1, found 0",
    ),
    "a timescale of nothing": (
        "learning_rate: 1e-3",
        "schedule: {kind: inverse_sqrt, timescale: 0}",
        "run.yaml:17: training.schedule.timescale: should be greater than or equal to 1, found 0",
    ),
    "an optimizer's class without its package": (
        "learning_rate: 1e-3",
        "optimizer: {class: Adagrad}",
        "run.yaml:17: training.optimizer.class: should be a package, module and class, such as torch.optim.Adagrad, "
        "found 'Adagrad'",
    ),
    "arguments of no optimizer": (
        "learning_rate: 1e-3",
        "optimizer: {arguments: {}}",
        "run.yaml:17: training.optimizer.class: missing: this key is required",
    ),
    "a lower rate for LoRA's matrices B": (
        "learning_rate: 1e-3",
        "lora_plus_ratio: 0.5",
        "run.yaml:17: training.lora_plus_ratio: should be greater than or equal to 1, found 0.5",
    ),
    "an average that never moves": (
        "learning_rate: 1e-3",
        "ema: {decay: 1}",
        "run.yaml:17: training.ema.decay: should be less than 1, found 1",
    ),
    "an average of the last step alone": (
        "learning_rate: 1e-3",
        "ema: {decay: 0}",
        "run.yaml:17: training.ema.decay: should be greater than 0, found 0",
    ),
    "a number for an average": (
        "learning_rate: 1e-3",
        "ema: 0.999",
        "run.yaml:17: training.ema: should be a section, found 0.999",
    ),
    "the average exported without one": (
        "",
        "run: {export: ema}",
        "run.yaml:18: run.export: should be 'last' or 'best', found 'ema'",
    ),
    "a profile from before the first step": (
        "learning_rate: 1e-3",
        "profile: {first_step: 0}",
        "run.yaml:17: training.profile.first_step: should be greater than or equal to 1, found 0",
    ),
    "a profile of no steps": (
        "learning_rate: 1e-3",
        "profile: {steps: 0}",
        "run.yaml:17: training.profile.steps: should be greater than or equal to 1, found 0",
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


# By fault: the value of training.optimizer, and the message, before a model is loaded and anything is written.
WRONG_OPTIMIZERS = {
    "a class that is not there": ("{class: torch.optim.Adagrat}", "torch.optim.Adagrat is not an optimizer of torch's"),
    "a class of something else": ("{class: torch.nn.Linear}", "torch.nn.Linear is not an optimizer of torch's"),
    "a package that is not there": ("{class: nowhere.Adam}", "nowhere.Adam: there is no module 'nowhere'"),
    "an argument of another class": (
        "{class: torch.optim.Adagrad, arguments: {lr_dekay: 1}}",
        "torch.optim.Adagrad cannot be created: TypeError: Adagrad.__init__() got an unexpected keyword argument "
        "'lr_dekay'; its arguments are lr_decay, weight_decay,",
    ),
    "a class that asks for the loss again": (
        "{class: torch.optim.LBFGS}",
        "torch.optim.LBFGS cannot train: TypeError: LBFGS.step() missing 1 required positional argument: 'closure'",
    ),
    "a class for other gradients": (
        "{class: torch.optim.SparseAdam}",
        "torch.optim.SparseAdam cannot train: RuntimeError: SparseAdam does not support dense gradients",
    ),
    "eight bits on a CPU": ("adamw_8bit", "adamw_8bit needs "),
}


@pytest.mark.parametrize(("optimizer", "message"), WRONG_OPTIMIZERS.values(), ids=WRONG_OPTIMIZERS.keys())
def test_an_optimizer_that_cannot_train_here_is_told_before_the_model_is_loaded(
    optimizer: str, message: str, edit_config: Callable[[str, str], None], refusal: Callable[..., str]
):
    edit_config("learning_rate: 1e-3", f"optimizer: {optimizer}")
    assert message in (told := refusal("run.yaml").splitlines()[-1])
    assert told.startswith("training.optimizer: ")
