"""Every shipped config loads and would run."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from posttrain.config.load import load_config, read_raw
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.plan import show_plan as show_dataserver_plan
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.dpo.plan import show_plan as show_dpo_plan
from posttrain.evaluate.config import EvalConfig
from posttrain.evaluate.run import Choice
from posttrain.evaluate.run import show_plan as show_eval_plan
from posttrain.inference.config import InferenceConfig
from posttrain.models.location import PACKAGED
from posttrain.pipeline.config import PipelineConfig
from posttrain.pipeline.pipeline import Wanted
from posttrain.pipeline.pipeline import show_plan as show_pipeline_plan
from posttrain.rl.config import RLConfig
from posttrain.rl.plan import show_plan as show_rl_plan
from posttrain.sft.config import SFTConfig
from posttrain.sft.plan import show_plan
from posttrain.synthesis.config import DataConfig
from posttrain.synthesis.prompts import show_plan as show_data_plan
from posttrain.synthesis.rush_hour import puzzles

ROOT = Path(__file__).parent.parent
SFT_TEMPLATE = ROOT / "sft_config_template.yaml"
DPO_TEMPLATE = ROOT / "dpo_config_template.yaml"
RL_TEMPLATE = ROOT / "rl_config_template.yaml"
DATA_TEMPLATE = ROOT / "rl_data_config_template.yaml"
EVAL_TEMPLATE = ROOT / "eval_config_template.yaml"
SAMPLING_TEMPLATE = ROOT / "data_config_template.yaml"
TEMPLATES: dict[Path, type[BaseModel]] = {
    SAMPLING_TEMPLATE: DataConfig,
    SFT_TEMPLATE: SFTConfig,
    DPO_TEMPLATE: DPOConfig,
    RL_TEMPLATE: RLConfig,
    DATA_TEMPLATE: DataserverConfig,
    EVAL_TEMPLATE: EvalConfig,
}
KINDS: dict[str, type[BaseModel]] = {
    "data": DataConfig,
    "sft": SFTConfig,
    "dpo": DPOConfig,
    "rl": RLConfig,
    "dataserver": DataserverConfig,
    "eval": EvalConfig,
    "pipeline": PipelineConfig,
}
EXAMPLES: dict[str, type[BaseModel]] = {
    "sft": SFTConfig,
    "dpo": DPOConfig,
    "kto": DPOConfig,
    "grpo": RLConfig,
    "rl_data": DataserverConfig,
    "data": DataConfig,
    "eval": EvalConfig,
}
SHIPPED = sorted([*ROOT.glob("configs/**/*.yaml"), *ROOT.glob("examples/**/*.yaml"), *ROOT.glob("[!.]*.yaml")])


def class_of(path: Path) -> type[BaseModel]:
    """The config class: by name for templates and examples, by folder for ready configs."""
    if path in TEMPLATES:
        return TEMPLATES[path]
    return KINDS[path.parent.name] if ROOT / "configs" in path.parents else EXAMPLES[path.stem]


def lacks_data(path: Path) -> bool:
    """Whether a dataserver's config reads files that are not shipped."""
    return path.parent.name == "dataserver" or path.parents[1].name == "coming_from"


def shipped_of(model: type[BaseModel]) -> list[Any]:
    return [pytest.param(path, id=str(path.relative_to(ROOT))) for path in SHIPPED if class_of(path) is model]


def test_there_is_a_template_and_there_are_configs_and_an_example():
    names = {str(path.relative_to(ROOT)) for path in SHIPPED}
    assert names >= {
        "data_config_template.yaml",
        "configs/data/word_problems.yaml",
        "sft_config_template.yaml",
        "dpo_config_template.yaml",
        "rl_config_template.yaml",
        "rl_data_config_template.yaml",
        "eval_config_template.yaml",
        "configs/sft/lora.yaml",
        "configs/sft/full_finetuning.yaml",
        "configs/sft/curriculum.yaml",
        "configs/dpo/dpo.yaml",
        "configs/rl/grpo.yaml",
        "configs/dataserver/gsm8k.yaml",
        "configs/dataserver/rush_hour.yaml",
        "configs/eval/word_problems.yaml",
        "configs/pipeline/word_problems.yaml",
        "configs/pipeline/own_answers.yaml",
        "examples/word_problems/sft.yaml",
    }


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_shipped_config_is_one_of_its_own_class(path: Path):
    assert isinstance(load_config(path, class_of(path)), class_of(path))


@pytest.mark.parametrize("path", [*shipped_of(SFTConfig), *shipped_of(DPOConfig), *shipped_of(RLConfig)])
def test_toolkit_predict_reads_every_training_config(path: Path):
    config: Any = load_config(path, class_of(path))
    assert load_config(path, InferenceConfig).generation == config.generation


@pytest.mark.parametrize("path", shipped_of(SFTConfig))
def test_a_dry_run_of_every_shipped_config_finds_nothing_wrong(
    path: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """With a tiny model instead of the packaged one, because converting that takes 20 seconds."""
    config = load_config(path, SFTConfig)
    assert config.model.name in PACKAGED, "a config that is tried first should need no hub"
    overrides = [f"model.name={tiny_model}", f"run.output_dir={tmp_path}", "chat.max_length=256"]
    show_plan(load_config(path, SFTConfig, overrides), path.stem)
    shown = capsys.readouterr().err
    assert "nothing was trained (--dry-run)" in shown
    assert all(stage.name in shown for stage in config.stages)


@pytest.mark.parametrize("path", shipped_of(DPOConfig))
def test_a_dry_run_of_every_shipped_preference_optimisation_finds_nothing_wrong(
    path: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], write_jsonl: Any
):
    """With a tiny model, and pairs in the place of those that a shipped sampling makes."""
    config = load_config(path, DPOConfig)
    assert config.model.name in PACKAGED, "a config that is tried first should need no hub"
    rows = [{"prompt": f"{number} + 5?", "chosen": str(number + 5), "rejected": "8"} for number in range(16)]
    pairs = write_jsonl(tmp_path / "pairs.jsonl", rows)
    overrides = [f"model={{name: {tiny_model}}}", f"run.output_dir={tmp_path}", "chat.max_length=1024"]
    overrides += [f"datasets.{name}.path={pairs}" for name in config.datasets if name == "own"]
    show_dpo_plan(load_config(path, DPOConfig, overrides), path.stem)
    shown = capsys.readouterr().err
    assert "nothing was trained (--dry-run)" in shown
    assert all(stage.name in shown for stage in config.stages)


GSM8K = [
    {"question": "48 clips in April, half as many in May?", "answer": "48 / 2 = 24\n48 + 24 = 72\n#### 72"},
    {"question": "How much is 1000 times 1,234?", "answer": "It is <<1000*1234=1234000>>1234000.\n#### 1,234,000"},
    {"question": "How many are left?", "answer": "None are left.\n#### 0"},
]


@pytest.mark.parametrize("path", shipped_of(DataserverConfig))
def test_a_dry_run_of_every_shipped_dataserver_finds_nothing_wrong(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], write_jsonl: Any
):
    """GSM8K is not shipped, so rows of the same form replace it; boards are generated."""
    write_jsonl(tmp_path / "gsm8k_train.jsonl", GSM8K)
    for name, moves in {"easy": (1, 4), "hard": (5, 6)}.items():
        write_jsonl(tmp_path / f"{name}.jsonl", [puzzle.row() for puzzle in puzzles(5, *moves, seed=0)])
    overrides = [f"data_root={tmp_path}"] if lacks_data(path) else []
    config = load_config(path, DataserverConfig, overrides)
    show_dataserver_plan(config)
    shown = capsys.readouterr().err
    assert shown.endswith("nothing was started (--dry-run)\n")
    assert all(stage.name in shown for stage in config.stages)


@pytest.mark.parametrize("path", shipped_of(RLConfig))
def test_a_dry_run_of_every_shipped_reinforcement_learning_finds_nothing_wrong(
    path: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], write_jsonl: Any
):
    """With a tiny model, and GSM8K-like rows beside a copy of the dataserver's config."""
    config = load_config(path, RLConfig)
    assert config.model.name in PACKAGED, "a config that is tried first should need no hub"
    served = config.dataserver.config
    assert served is not None
    overrides = [f"model={{name: {tiny_model}}}", f"run.output_dir={tmp_path / 'runs'}"]
    if lacks_data(served):
        shutil.copy(served, tmp_path)
        # One in 50 rows is held out, and the evaluation needs 100.
        rows = [{**row, "question": f"{number}. {row['question']}"} for number in range(1800) for row in GSM8K]
        write_jsonl(tmp_path / "gsm8k_train.jsonl", rows)
        overrides.append(f"dataserver.config={tmp_path / served.name}")
    show_rl_plan(load_config(path, RLConfig, overrides), path.stem)
    shown = capsys.readouterr().err
    assert shown.endswith("nothing was trained (--dry-run)\n")
    assert all(stage.name in shown for stage in load_config(served, DataserverConfig).stages)


@pytest.mark.parametrize("path", shipped_of(EvalConfig))
def test_a_dry_run_of_every_shipped_evaluation_finds_nothing_wrong(
    path: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """With a tiny model before training, because there is no run; the puzzles have more tokens than it can read."""
    (tmp_path / "sft.yaml").write_text(f"model: {{name: {tiny_model}}}\nchat: {{max_length: 1024}}\n")
    models = f"models={{base: {{config: {tmp_path / 'sft.yaml'}, weights: base}}}}"
    config = load_config(path, EvalConfig, [models, f"output={tmp_path / 'out'}"])
    tasks = [name for name in config.tasks if name != "puzzles"]
    show_eval_plan(config, Choice(tasks=tasks))
    shown = capsys.readouterr().err
    assert shown.endswith("nothing was asked (--dry-run)\n")
    assert all(f"task {name}:" in shown for name in tasks)


@pytest.mark.parametrize("path", shipped_of(DataConfig))
def test_a_dry_run_of_every_shipped_sampling_finds_nothing_wrong(
    path: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "sft.yaml").write_text(f"model: {{name: {tiny_model}}}\n")
    model = f"model={{config: {tmp_path / 'sft.yaml'}, weights: base}}"
    show_data_plan(load_config(path, DataConfig, [model, f"output={tmp_path / 'out'}"]))
    shown = capsys.readouterr().err
    assert "nothing was asked (--dry-run)" in shown
    assert all(kept["path"] in shown for kept in read_raw(path)["keep"])


@pytest.mark.parametrize("path", shipped_of(PipelineConfig))
def test_a_dry_run_of_every_shipped_pipeline_finds_nothing_wrong(
    path: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    raw = read_raw(path)
    trained = [name for name, step in raw["steps"].items() if step["run"] in ("sft", "dpo", "rl-train")]
    models = [f'steps.{name}.set={{"model.name": "{tiny_model}"}}' for name in trained]
    show_pipeline_plan(load_config(path, PipelineConfig, [*models, f"output_dir={tmp_path}"]), path.stem, Wanted())
    shown = capsys.readouterr().err
    assert shown.endswith("nothing was run (--dry-run)\n")
    assert all(name in shown for name in raw["steps"])


@pytest.mark.parametrize("path", [path for path in SHIPPED if ROOT / "examples" not in path.parents])
def test_editors_find_the_schema_from_the_first_line(path: Path):
    header, schema = path.read_text().splitlines()[0].split("=")
    (kind,) = [kind for kind, model in KINDS.items() if model is class_of(path)]
    assert header == "# yaml-language-server: $schema"
    assert (path.parent / schema).resolve() == ROOT / "configs" / kind / "schema.json"
