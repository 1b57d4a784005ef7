"""The rest of a toolkit-dpo config: three kinds of data sets, and stages that end at a step or after some epochs."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from config_reference import undocumented_fields

from posttrain.config.load import load_config
from posttrain.dpo.config.data import LabelledAnswers, PairsDataset, TwoFilesDataset
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.errors import ConfigError
from posttrain.runs.trained_run import load_trained_run

STAGES = [{"name": "all", "until_step": 4, "mix": {"pairs": 1}}]


@pytest.fixture
def load(tmp_path: Path):
    """`load(section=...)` reads a config with these sections in place of the default ones."""

    def call(**sections: Any) -> DPOConfig:
        config = {
            "model": {"name": "smollm2-135m-instruct"},
            "datasets": {"pairs": {"path": "pairs.jsonl"}},
            "stages": STAGES,
            **sections,
        }
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        return load_config(path, DPOConfig)

    return call


def test_every_key_has_a_sentence():
    assert undocumented_fields(DPOConfig) == []


def test_the_kind_of_a_data_set_is_told_by_its_keys(load, tmp_path: Path):
    datasets = {
        "pairs": {"path": "pairs.jsonl", "n_samples": 7},
        "files": {"accepted": "good.jsonl", "rejected": {"path": "bad.jsonl", "columns": {"prompt": "q"}}},
        "marks": {"path": "marks.jsonl", "columns": {"label": "good"}},
        "named": {"type": "labelled", "path": "named.jsonl"},
    }
    mix = dict.fromkeys(datasets, 1)
    config = load(datasets=datasets, method={"type": "kto"}, stages=[{"name": "all", "until_step": 4, "mix": mix}])
    kinds = [type(dataset) for dataset in config.datasets.values()]
    assert kinds == [PairsDataset, TwoFilesDataset, LabelledAnswers, LabelledAnswers]
    assert config.datasets["pairs"].n_samples == 7
    assert {key: source.path for key, source in config.data_sources().items()} == {
        "datasets.pairs": str(tmp_path / "pairs.jsonl"),
        "datasets.files.accepted": str(tmp_path / "good.jsonl"),
        "datasets.files.rejected": str(tmp_path / "bad.jsonl"),
        "datasets.marks": str(tmp_path / "marks.jsonl"),
        "datasets.named": str(tmp_path / "named.jsonl"),
    }
    assert config.data_sources()["datasets.files.rejected"].columns.prompt == "q"


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"datasets": {"pairs": {"type": "labelled", "path": "a.jsonl"}}},
            "datasets: pairs: dpo compares the two answers of a pair, but these answers are labelled individually; "
            "set method.type: kto, or give pairs",
        ),
        (
            {"validation": {"dataset": {"type": "labelled", "path": "a.jsonl"}}},
            "validation: dataset: dpo compares the two answers of a pair",
        ),
        ({"datasets": {"pairs": {"accepted": "a.jsonl"}}}, "datasets.pairs.rejected: missing"),
        (
            {"datasets": {"pairs": {"accepted": "a.jsonl", "rejected": "b.jsonl", "path": "c.jsonl"}}},
            "datasets.pairs.path: unknown key",
        ),
        (
            {"datasets": {"pairs": {"path": "a.jsonl", "n_samples": -1}}},
            "n_samples: should be greater than or equal to 1, found",
        ),
        (
            {"datasets": {"pairs": {"path": "a.jsonl", "n_samples": 0}}},
            "n_samples: should be greater than or equal to 1, found",
        ),
        (
            {"datasets": {"pairs": {"path": "a.jsonl", "columns": {"chosen": "x", "rejected": "x"}}}},
            "x cannot mean two things at once",
        ),
        ({"on_useless_pair": "keep"}, "on_useless_pair: should be 'drop' or 'error', found 'keep'"),
        ({"run": {"export": "best"}}, "export: best needs a validation or an evaluation section"),
        ({"lora": None, "model": {"name": "x", "quantization": "4bit"}}, "quantised weights cannot be trained in full"),
    ],
)
def test_what_makes_no_sense_is_refused_by_one_message(sections: dict[str, Any], message: str, load):
    with pytest.raises(ConfigError) as refused:
        load(**sections)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ({"until_step": 4, "epochs": 1, "mix": {"pairs": 1}}, "give exactly one of `until_step` (a step) and `epochs`"),
        ({"mix": {"pairs": 1}}, "give exactly one of `until_step` (a step) and `epochs`"),
        ({"until_step": 4}, "mix is missing; only a stage with `epochs` may omit it"),
        ({"epochs": 0, "mix": {"pairs": 1}}, "epochs: should be greater than 0, found 0"),
        ({"epochs": 1, "mix": {"pairs": 0}}, "all weights are 0"),
        ({"epochs": 1, "mix": {"pears": 1}}, "there is no data set 'pears'; known: pairs"),
    ],
)
def test_a_stage_ends_in_one_way_and_mixes_what_is_there(stage: dict[str, Any], message: str, load):
    with pytest.raises(ConfigError) as refused:
        load(stages=[{"name": "one", **stage}])
    assert message in str(refused.value)


def test_a_data_set_that_no_stage_uses_is_refused_and_a_stage_without_a_mix_uses_all(load):
    datasets = {"pairs": {"path": "pairs.jsonl"}, "more": {"path": "more.jsonl"}}
    with pytest.raises(ConfigError, match="no stage uses more; add it to a stage's mix"):
        load(datasets=datasets, stages=[{"name": "one", "epochs": 1, "mix": {"pairs": 1}}])
    assert load(datasets=datasets, stages=[{"name": "one", "epochs": 1}]).stages[0].mix is None


def test_steps_are_checked_before_the_data_are_read_where_they_are_known(load):
    with pytest.raises(ConfigError, match="max_steps 5 is beyond the last stage, which ends at 4"):
        load(training={"max_steps": 5})
    with pytest.raises(ConfigError, match="warmup_steps 4 leaves no step of the 4"):
        load(training={"warmup_steps": 4})
    assert load(training={"max_steps": 5}, stages=[{"name": "one", "epochs": 1}]).training.max_steps == 5


def test_epochs_are_steps_once_the_rows_are_counted_rounded_up(load):
    stages = [
        {"name": "half", "epochs": 0.5, "mix": {"a": 1}},
        {"name": "until", "until_step": 9, "mix": {"b": 1}},
        {"name": "twice", "epochs": 2, "mix": {"a": 3, "b": 1}},
        {"name": "all", "epochs": 1},
    ]
    datasets = {"a": {"path": "a.jsonl"}, "b": {"path": "b.jsonl"}, "c": {"path": "c.jsonl"}}
    config = load(datasets=datasets, stages=stages, training={"rows_per_step": 4, "micro_batch_size": 4})
    resolved = config.curriculum_stages({"a": 30, "b": 11, "c": 6})
    # 15 of 30 rows are 3.75 steps; 2 × 41 rows are 20.5 steps; 47 rows are 11.75 steps.
    assert [stage.until_step for stage in resolved] == [4, 9, 9 + 21, 30 + 12]
    assert resolved[2].weights == {"a": 3, "b": 1}
    assert resolved[3].weights == {"a": 30, "b": 11, "c": 6}


def test_epochs_that_make_whole_steps_are_not_rounded_up_by_an_inexact_product(load):
    stages = [{"name": "one", "epochs": 1.1, "mix": {"pairs": 1}}]
    config = load(stages=stages, training={"rows_per_step": 1, "micro_batch_size": 1})
    # In floating point, 1.1 × 50 is 55.00000000000001.
    assert [stage.until_step for stage in config.curriculum_stages({"pairs": 50})] == [55]


def test_merge_and_predict_find_a_run_by_its_config(load, tmp_path: Path):
    load(lora={"r": 4}, chat={"max_length": 77}, run={"output_dir": "out"})
    folder = tmp_path / "out" / "run"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text((tmp_path / "run.yaml").read_text())
    found = load_trained_run(tmp_path / "run.yaml")
    assert found.directory.path == folder
    assert found.lora is not None
    assert (found.model.name, found.lora.r, found.chat.max_length) == ("smollm2-135m-instruct", 4, 77)
