"""The text of a first config: commented YAML."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml

from posttrain.init.columns import Guess
from posttrain.init.measure import Measured

if TYPE_CHECKING:
    from posttrain.init.golds import Gold

GENERATIONS = 8
"""Completions for each prompt of grpo."""
NEW_TOKENS = 256
HELD_OUT = 0.05


@dataclass(frozen=True)
class Choices:
    """All that a config is written from.

    Attributes:
        data: path of the data as the config names it.
        data_root: folder of the data for a dataserver; None if it is that of the config.
        max_length: limit in tokens; of the prompt for grpo.
        rows_per_step: rows, pairs or completions.
        steps: optimizer steps.
        held_out: share of the rows, 0 if there are too few.
    """

    name: str
    model: str
    data: str
    guess: Guess
    measured: Measured
    max_length: int
    rows_per_step: int
    micro_batch: int
    steps: int
    epochs: float
    held_out: float
    gold: "Gold | None" = None
    data_root: str | None = None


def train_config(choices: Choices) -> str:
    """A config of toolkit-sft or toolkit-dpo."""
    command, is_sft = f"toolkit-{choices.guess.task}", choices.guess.task == "sft"
    unit = "rows" if is_sft else "pairs"
    measured, every = choices.measured, max(1, choices.steps // 10)
    skipped = _skipping(measured)
    validation = f"""
# Held-out rows, chosen by content, on which the loss is measured.
validation:
  fraction: {choices.held_out:g}
  every: {every}
"""
    return f"""{_head(choices, command)}
chat:
  # {_lengths(measured, unit)}. Longer ones are dropped.
  max_length: {choices.max_length}
  truncation: drop

datasets:
  data:
    path: {quoted(choices.data)}
{_columns(choices.guess.renamed)}{skipped}{validation * (choices.held_out > 0)}
# The curriculum: add data sets and stages to mix them over time.
stages:
  - name: all
    until_step: {choices.steps}  # {_passes(choices, unit)}
    mix: {{data: 1}}

training:
  rows_per_step: {choices.rows_per_step}
  micro_batch_size: {choices.micro_batch}  # {unit} at once: changes memory and speed, not the result
  learning_rate: {"2e-4" if is_sft else "2e-5"}
  warmup_steps: {min(10, choices.steps // 10)}

run:
  output_dir: runs
  name: {quoted(choices.name)}
"""


def server_config(choices: Choices, gold: "Gold") -> str:
    """A config of toolkit-rl-dataserver, for grpo."""
    extract = f", extract: {{after: {quoted(gold.after)}}}" if gold.after else ""
    system = f"    system: {quoted(gold.system)}\n" if gold.system else ""
    held_out = f"    validation_fraction: {choices.held_out:g}\n" if choices.held_out else ""
    root = f"data_root: {quoted(choices.data_root)}\n" if choices.data_root else ""
    told = "the last number of a completion" if gold.is_number else "the whole completion"
    return f"""# Prompts and rewards: a first config for toolkit-rl-dataserver, whose template lists every other key.
{root}prompts_per_iteration: {choices.rows_per_step // GENERATIONS}

datasets:
  data:
    path: {quoted(choices.data)}
{_columns(choices.guess.renamed)}    gold: {{column: {quoted(gold.column)}{extract}}}
{system}    graders: {{right: 1}}
{held_out}{_skipping(choices.measured)}
# A reward of 1 where {told} is the gold answer.
graders:
  right: {{type: {"number_exact" if gold.is_number else "string_exact"}}}

stages:
  - name: all
    until_step: {choices.steps}  # {_passes(choices, "prompts")}
    mix: {{data: 1}}

journal:
  path: {quoted(f"runs/{choices.name}.sqlite")}
"""


def rl_config(choices: Choices, name: str, server: str) -> str:
    """A config of toolkit-rl-train for the run `name`; `server` is the file of its dataserver's config."""
    measured = choices.measured
    evaluation = f"""
# Rewards on held-out prompts.
evaluation:
  every: {max(1, choices.steps // 10)}
  max_new_tokens: {NEW_TOKENS}
"""
    return f"""{_head(choices, "toolkit-rl-train")}
dataserver:
  config: {quoted(server)}

algorithm: grpo

rollout:
  generations: {GENERATIONS}
  # Raise it if completions are cut off.
  max_new_tokens: {NEW_TOKENS}
  # {_lengths(measured, "prompts")}.
  max_prompt_tokens: {choices.max_length}
{evaluation * (choices.held_out > 0)}
training:
  rows_per_step: {choices.rows_per_step}  # completions
  micro_batch_size: {choices.micro_batch}  # changes memory and speed, not the result
  learning_rate: 2e-5
  warmup_steps: {min(10, choices.steps // 10)}

run:
  output_dir: runs
  name: {quoted(name)}
"""


def eval_config(choices: Choices, train: str, server: str) -> str:
    """A config of toolkit-eval: the dataserver's rewards on its held-out prompts."""
    is_cut = choices.measured.faults or choices.measured.lengths[-1] > choices.max_length
    skipped = """
# Prompts that are too long or cannot be used are not asked, and are counted.
on_bad_record: skip
""" * bool(is_cut)
    return f"""# A first config for toolkit-eval: rewards on the prompts that the dataserver holds out.
output: {quoted(f"runs/{choices.name}_scores")}

models:
  base: {{config: {quoted(train)}, weights: base}}

tasks:
  held_out: {{type: graded, config: {quoted(server)}, dataset: data}}

sampling:
  max_new_tokens: {NEW_TOKENS}
{skipped}"""


def pipeline_config(choices: Choices, train: str, evaluation: str) -> str:
    """A config of toolkit-pipeline, for grpo; the others are the files of its steps."""
    return f"""# A first config for toolkit-pipeline: train, measure on prompts that no step trains on, and decide.
output_dir: runs
name: {quoted(choices.name)}

steps:
  grpo:
    run: rl-train
    config: {quoted(train)}
    set: {{evaluation: null}}  # scores measures

  merged: {{run: merge, of: grpo}}

  scores:
    run: eval
    config: {quoted(evaluation)}
    models: {{base: base, grpo: merged}}

  choice: {{run: decide, of: scores, take: merged, over: base, task: held_out}}
"""


def quoted(value: str) -> str:
    """Text in double quotes, with everything escaped that YAML would read as something else."""
    return yaml.safe_dump(value, default_style='"', allow_unicode=True, width=math.inf).rstrip("\n")


def _head(choices: Choices, command: str) -> str:
    return f"""# A first config for {command}. The template of that command lists every other key with its meaning.
model:
  name: {quoted(choices.model)}

# A LoRA adapter is trained; `lora: null` trains all weights.
lora:
  r: 16
  alpha: 32
"""


def _lengths(measured: Measured, unit: str) -> str:
    half, most, longest = measured.percentile(50), measured.percentile(95), measured.lengths[-1]
    return f"Half of the {unit} have up to {half} tokens, 95 % up to {most}, the longest {longest}"


def _passes(choices: Choices, unit: str) -> str:
    times = "1 pass" if choices.epochs == 1 else f"{choices.epochs:g} passes"
    return f"{times} over {choices.measured.rows:,} {unit}, without those held out or too long"


def _columns(renamed: Mapping[str, str]) -> str:
    if not renamed:
        return ""
    inner = ", ".join(f"{meaning}: {quoted(name)}" for meaning, name in renamed.items())
    return f"    columns: {{{inner}}}\n"


def _skipping(measured: Measured) -> str:
    if not measured.faults:
        return ""
    count = len(measured.faults)
    return f"""
# {count} of {measured.rows + count:,} records cannot be used, and are left out and counted.
on_bad_record: skip
"""
