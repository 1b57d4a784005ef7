"""The prompts of `toolkit-data run`: read, checked, and without those that must not or need not be asked."""

from dataclasses import replace

from posttrain.base.console import console
from posttrain.base.locks import require_unowned
from posttrain.base.text import counted
from posttrain.config.sections.answerers import TrainedModelConfig
from posttrain.data.row_texts import prompt_text
from posttrain.errors import DataError
from posttrain.evaluate.prompts import GradedPrompts, read_prompts
from posttrain.synthesis.cleaning import contaminated, repeated
from posttrain.synthesis.config import PROMPTS, DataConfig
from posttrain.synthesis.files import show_left_out
from posttrain.synthesis.ledger import Ledger


def read_clean_prompts(config: DataConfig) -> tuple[GradedPrompts, Ledger]:
    """The prompts to ask, and a ledger that counts those that are left out.

    Raises:
        ConfigError, DataError: rows or graders are wrong, or no prompt is left.
    """
    code = config.allow_code_execution
    prompts = read_prompts(PROMPTS, config.prompts, config.prompts.limit, config.graders, allow_code_execution=code)
    ledger, rows = Ledger(), list(prompts.rows)
    ledger.prompts["read"] = len(rows)
    if config.decontaminate is not None:
        found = contaminated([(row.place, prompt_text(row.prompt)) for row in rows], config.decontaminate)
        rows = [row for number, row in enumerate(rows) if number not in found]
        ledger.contaminated = list(found.values())
    if config.dedup is not None and config.dedup.by == "prompt":
        found = repeated([(row.place, prompt_text(row.prompt)) for row in rows], config.dedup.near)
        rows = [row for number, row in enumerate(rows) if number not in found]
        ledger.duplicates = list(found.values())
    ledger.prompts["contaminated"], ledger.prompts["duplicate"] = len(ledger.contaminated), len(ledger.duplicates)
    show_left_out([*ledger.contaminated, *ledger.duplicates])
    if not rows:
        raise DataError(f"prompts: all {len(prompts.rows):,} are contaminated; take others")
    return replace(prompts, rows=rows), ledger


def show_plan(config: DataConfig) -> None:
    """`--dry-run`: check everything that can be checked without a tokenizer, and print what would be asked.

    Raises:
        ConfigError, DataError, ModelError: something is wrong.
    """
    from posttrain.inference.answering.endpoint import new_links
    from posttrain.inference.weights import weights_of

    require_unowned(config.output)
    prompts, ledger = read_clean_prompts(config)
    if isinstance(config.model, TrainedModelConfig):
        console.print(f"model: {weights_of(config.model)}")
    else:
        new_links(config.model)
        console.print(f"model: {config.model.model} at {config.model.place}")
    console.print(
        f"{counted(ledger.prompts['read'], 'prompt')}: {ledger.prompts['contaminated']:,} contaminated, "
        f"{ledger.prompts['duplicate']:,} duplicate, {len(prompts.rows):,} to ask for "
        f"{counted(config.sample.n, 'answer')} each"
    )
    for kept in config.keep:
        console.print(f"keep {config.output / kept.path}, rows for toolkit-{'sft' if kept.type == 'sft' else 'dpo'}")
    console.print("nothing was asked (--dry-run)")
