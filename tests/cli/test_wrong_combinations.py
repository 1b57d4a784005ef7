"""Config settings that are valid alone but not together."""

from collections.abc import Callable

import pytest

# What is wrong: the text to replace in the config (empty: append as line 18), its replacement, and the message.
WRONG_TOGETHER = {
    "a stage that ends before it begins": (
        "until_step: 4",
        "until_step: 2",
        "run.yaml:7: stages: stage 'main': until_step is 2, but the stage begins at 2; until_step counts from the "
        "start of the run, so raise it to 3 or more",
    ),
    "a stage that ends in two ways": (
        "until_step: 4",
        "until_step: 4\n    epochs: 1",
        "run.yaml:11: stages.1: give exactly one of `until_step` (a step) and `epochs` (passes over the data)",
    ),
    "two stages of one name": (
        "name: main",
        "name: warm-up",
        "run.yaml:7: stages: stage 'warm-up': there are two stages with this name; rename one",
    ),
    "a data set that is not there": (
        "words: 2}",
        "word: 2}",
        "run.yaml:7: stages: stage 'main': there is no data set 'word'; known: sums, words",
    ),
    "a data set that nothing uses": (
        "{sums: 1, words: 2}",
        "{sums: 2}",
        "run.yaml:7: stages: no stage uses words; add it to a stage's mix or remove it from datasets",
    ),
    "micro-batches that do not fill a step": (
        "micro_batch_size: 2",
        "micro_batch_size: 3",
        "run.yaml:14: training: rows_per_step 4 is not a multiple of micro_batch_size 3; choose a micro_batch_size "
        "that divides it",
    ),
    "a warm-up as long as the run": (
        "learning_rate: 1e-3",
        "warmup_steps: 4",
        "run.yaml:14: training: warmup_steps 4 leaves no step of the 4 to train at the full learning rate; lower it",
    ),
    "more steps than the stages have": (
        "learning_rate: 1e-3",
        "max_steps: 5",
        "run.yaml:14: training: max_steps 5 is beyond the last stage, which ends at 4; raise that stage's until_step",
    ),
    "a lowest learning rate without a cosine": (
        "learning_rate: 1e-3",
        "schedule: linear\n  min_learning_rate_ratio: 0.1",
        "run.yaml:14: training: min_learning_rate_ratio is for schedule: cosine, polynomial, warmup_stable_decay; "
        "leave it out",
    ),
    "two lengths of one warm-up": (
        "learning_rate: 1e-3",
        "warmup_steps: 1\n  warmup_ratio: 0.1",
        "run.yaml:14: training: give either warmup_steps or warmup_ratio (a share of all steps), not both",
    ),
    "a share to warm up that is the whole run": (
        "learning_rate: 1e-3",
        "warmup_ratio: 0.8",
        "run.yaml:14: training: warmup_ratio 0.8, 4 steps, leaves no step of the 4 to train at the full learning rate; "
        "lower it",
    ),
    "the option of another schedule": (
        "learning_rate: 1e-3",
        "schedule: {kind: linear, power: 2}",
        "run.yaml:17: training.schedule: power is for kind: polynomial; leave it out",
    ),
    "a decay that begins in the warm-up": (
        "learning_rate: 1e-3",
        "schedule: {kind: warmup_stable_decay, decay_ratio: 0.7}\n  warmup_steps: 2",
        "run.yaml:14: training: a warm-up of 2 steps and a decay over 3 (schedule.decay_ratio) are more than the 4 to "
        "train; lower one of them",
    ),
    "a momentum that is not read": (
        "learning_rate: 1e-3",
        "momentum: 0.9",
        "run.yaml:14: training: momentum: optimizer: adamw has none; leave it out",
    ),
    "a setting beside one's own optimizer": (
        "learning_rate: 1e-3",
        "weight_decay: 0.1\n  optimizer: {class: torch.optim.Adagrad}",
        "run.yaml:14: training: weight_decay: your own optimizer reads only optimizer.arguments; leave it out",
    ),
    "a learning rate among the arguments": (
        "learning_rate: 1e-3",
        "optimizer: {class: torch.optim.Adagrad, arguments: {lr: 0.1}}",
        "run.yaml:17: training.optimizer.arguments: lr is training.learning_rate; leave it out here",
    ),
    "a schedule for an optimizer that needs none": (
        "learning_rate: 1e-3",
        "optimizer: schedule_free_adamw",
        "run.yaml:14: training: optimizer: schedule_free_adamw averages the weights instead of lowering the learning "
        "rate; set schedule: constant",
    ),
    "two averages": (
        "learning_rate: 1e-3",
        "optimizer: schedule_free_sgd\n  schedule: constant\n  ema: {}",
        "run.yaml:14: training: ema: optimizer: schedule_free_sgd averages the weights itself; leave ema out",
    ),
    "a rate for the matrices of an adapter that is not there": (
        "learning_rate: 1e-3",
        "lora_plus_ratio: 16\nlora: null",
        "run.yaml:14: training: lora_plus_ratio is for adapters, but lora: null trains all weights; leave it out",
    ),
    "columns for a format that has its own": (
        "{path: sums.jsonl}",
        "{path: sums.jsonl, format: alpaca, columns: {prompt: question}}",
        "run.yaml:5: datasets.sums: format: alpaca has columns of its own; leave out columns.prompt",
    ),
    "noise that depends on rows which have no padding": (
        "learning_rate: 1e-3",
        "neftune_alpha: 5\n  batching: padding_free",
        "run.yaml:14: training: neftune_alpha: the noise depends on the length of padded rows; set batching: by_length",
    ),
    "activations that compiled layers need": (
        "learning_rate: 1e-3",
        "offload_activations: true\n  compile: true",
        "run.yaml:14: training: offload_activations: compiled layers need activations as they are; set compile: auto",
    ),
    "a profile of steps that are never reached": (
        "learning_rate: 1e-3",
        "profile: {first_step: 4, steps: 2}",
        "run.yaml:14: training: profile: step 5 is beyond the last step 4; lower first_step or steps",
    ),
    "validation on nothing": (
        "",
        "validation: {every: 5}",
        "run.yaml:18: validation: give either `dataset` (a file of its own) or `fraction` (a share of the data)",
    ),
    "validation on two things": (
        "",
        "validation: {fraction: 0.1, dataset: {path: sums.jsonl}}",
        "run.yaml:18: validation: give either `dataset` (a file of its own) or `fraction` (a share of the data)",
    ),
    "patience that is missing": (
        "",
        "validation: {fraction: 0.1, min_improvement: 0.1}",
        "run.yaml:18: validation: min_improvement has no effect without patience; give patience too, or leave it out",
    ),
    "the best of nothing measured": (
        "",
        "run: {export: best}",
        "run.yaml:18: run: export: best needs a validation or an evaluation section to tell which is best",
    ),
    "an adapter and the shape of another": (
        "backend: hf}",
        "adapter: old}\nlora: {r: 4}",
        "run.yaml:2: lora: model.adapter already has its own shape; leave the lora section out",
    ),
    "an adapter and the start of another": (
        "backend: hf}",
        "adapter: old}\nlora: {init: pissa}",
        "run.yaml:2: lora: model.adapter already has its own shape; leave the lora section out",
    ),
    "a start from weights that are rounded": (
        "backend: hf}",
        "quantization: 4bit}\nlora: {init: olora}",
        "run.yaml:2: lora: init: olora starts from the base's exact weights; drop quantization, or set loftq",
    ),
    "a start at what no quantisation took": (
        "backend: hf}",
        "backend: hf}\nlora: {init: loftq}",
        "run.yaml:2: lora: init: loftq makes up for quantisation; set model.quantization, or another init",
    ),
    "a quantised start with dropout": (
        "backend: hf}",
        "quantization: 4bit}\nlora: {init: loftq, dropout: 0.1}",
        "run.yaml:2: lora: init: loftq needs dropout: 0, as dropout would also drop parts of the weights that it "
        "starts from",
    ),
    "a start with magnitudes": (
        "backend: hf}",
        "backend: hf}\nlora: {init: pissa, dora: true}",
        "run.yaml:2: lora: init: pissa cannot be saved for the original base with dora; set dora to false",
    ),
    "a start with dropout": (
        "backend: hf}",
        "backend: hf}\nlora: {init: olora, dropout: 0.1}",
        "run.yaml:2: lora: init: olora needs dropout: 0, as dropout would also drop parts of the weights that it "
        "starts from",
    ),
    "a start from weights that decay": (
        "learning_rate: 1e-3",
        "weight_decay: 0.1\nlora: {init: pissa}",
        "run.yaml:14: training: weight_decay: decay would shrink the weights that lora.init: pissa starts from; set it "
        "to 0",
    ),
    "a start with decay by an optimizer of one's own": (
        "learning_rate: 1e-3",
        "optimizer: {class: torch.optim.AdamW, arguments: {weight_decay: 0.1}}\nlora: {init: pissa}",
        "run.yaml:14: training: optimizer.arguments.weight_decay: decay would shrink the weights that lora.init: pissa "
        "starts from; set it to 0",
    ),
    "quantised weights trained in full": (
        "backend: hf}",
        "quantization: 4bit}\nlora: null",
        "run.yaml:2: lora: quantised weights cannot be trained in full; keep the lora section or drop quantization",
    ),
    "answers trained without the reasoning in them": (
        "max_length: 64",
        "reasoning_history: drop",
        "run.yaml:2: chat: reasoning_history: drop hides the reasoning of earlier turns, so they cannot be trained as "
        "they were written; set train_on: last",
    ),
    "reasoning dropped by another template": (
        "max_length: 64",
        "template: tokenizer\n  train_on: last\n  reasoning_history: drop",
        "run.yaml:2: chat: reasoning_history: drop is for template: chatml; another template decides for itself, so "
        "leave it out",
    ),
    "variables for a template without any": (
        "max_length: 64",
        "template_variables: {enable_thinking: false}",
        "run.yaml:2: chat: template_variables: template: chatml has none; leave them out, or set template to tokenizer "
        "or a file",
    ),
    "tags in another template": (
        "max_length: 64",
        "template: tokenizer\n  solution_tags: {open: <a>, close: </a>}",
        "run.yaml:2: chat: reasoning_tags and solution_tags are for template: chatml; another template writes its own, "
        "so leave them out",
    ),
    "one tag within another": (
        "max_length: 64",
        "reasoning_tags: {open: <a>, close: </a>}\n  solution_tags: {open: <a><b>, close: </b>}",
        "run.yaml:2: chat: the tag '<a>' is contained in another one; make them all different",
    ),
    "a control token as a tag": (
        "max_length: 64",
        "solution_tags: {open: <|im_start|>, close: </a>}",
        "run.yaml:2: chat: the tag '<|im_start|>' has a control token of ChatML; choose another text",
    ),
    "a revision of a local folder": (
        "backend: hf",
        "revision: main",
        "run.yaml:1: model: revision is for Hugging Face ids, but name is a local path; leave revision out",
    ),
    "the same answer several times": (
        "",
        "generation: {n: 4}",
        "run.yaml:18: generation: n: 4 with temperature: 0 gives the same answer 4 times; raise the temperature",
    ),
}


@pytest.mark.parametrize(("old", "new", "message"), WRONG_TOGETHER.values(), ids=WRONG_TOGETHER.keys())
def test_what_does_not_fit_together_is_told_before_any_file_is_read(
    old: str, new: str, message: str, edit_config: Callable[[str, str], None], refusal: Callable[..., str]
):
    edit_config(old, new)
    assert refusal("run.yaml") == message
