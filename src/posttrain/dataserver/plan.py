"""`toolkit-rl-dataserver --dry-run`: show stages, data, graders and the first prompts."""

from rich.table import Table

from posttrain.base.console import console, new_table
from posttrain.base.text import one_line
from posttrain.dataserver.adaptive.planner import Planner
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.data.sampling import Slot
from posttrain.dataserver.runtime import Loaded

_FIRST_PROMPTS = 4
_LONGEST_PROMPT = 300


def show_plan(config: DataserverConfig) -> None:
    """Check config and data, and print what would be served.

    Raises:
        DataError, ConfigError: as when serving, except for graders that cannot be loaded and golds that cannot be read,
            which only the grading processes find.
    """
    loaded = Loaded.read(config, console.print)
    console.print(f"config_id {loaded.meta.config_id}")
    console.print(_data_table(loaded), soft_wrap=False)
    console.print(_stage_table(loaded), soft_wrap=False)
    if config.adaptive is not None:
        console.print("\n".join(Planner(loaded, config.adaptive).outline()))
    console.print("the first prompts:")
    for slot in _first_slots(loaded, min(_FIRST_PROMPTS, config.prompts_per_iteration)):
        sample = loaded.samples.sample(slot)
        console.print(f"  {sample.sample_id}")
        for message in sample.messages:
            console.print(f"    {message.role}: {one_line(message.content, _LONGEST_PROMPT)}")
    console.print("nothing was started (--dry-run)")


def _first_slots(loaded: Loaded, count: int) -> list[Slot]:
    """The first slots of iteration 0, before anything is graded."""
    if loaded.config.adaptive is not None:
        rows = Planner(loaded, loaded.config.adaptive).plan(0, {})[:count]
        return [Slot(slot, row.dataset, row.number) for slot, row in enumerate(rows)]
    return loaded.sampler.slots(0, 0, count, "train")


def _data_table(loaded: Loaded) -> Table:
    table = new_table("", "data set", "rows", "validation", "bad", "too long", "file", words=("file",))
    for dataset in loaded.meta.datasets:
        source = getattr(loaded.config.datasets[dataset.name], "path", "made on demand")
        left_out = (len(loaded.datasets[dataset.name].faults), dataset.too_long_rows)
        counts = (dataset.rows, dataset.validation_rows, *left_out)
        table.add_row(dataset.name, *(f"{count:,}" for count in counts), source)
    return table


def _stage_table(loaded: Loaded) -> Table:
    words = ("iterations", "data set", "reward")
    table = new_table("", "stage", "iterations", "data set", "share", "prompts", "reward", words=words)
    for number, stage in enumerate(loaded.meta.stages):
        drawn = loaded.sampler.draws_per_dataset(number)
        for name, share in stage.mix.items():
            if share:
                iterations = f"{stage.from_iteration} to {stage.until_iteration - 1}"
                facts = (f"{share:.1%}", f"{drawn[name]:,}")
                for first, (label, reward) in enumerate(stage.rewards(name)):
                    head, tail = (("", ""), ("", "")) if first else ((stage.name, iterations), facts)
                    table.add_row(*head, label, *tail, reward)
    return table
