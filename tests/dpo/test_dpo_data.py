"""All data of a run: splits, the order of the stages, and the number of steps."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.config.load import load_config
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.dpo.data import PreferenceData, prepare_data
from posttrain.dpo.datasets import LabelledDataset, PairedDataset
from posttrain.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.fixture
def data(tmp_path: Path, tiny_model: Path, tokenizer, write_jsonl):
    """`data(section=...)` prepares 12 pairs `a`, two per prompt, and 8 pairs `b`; keywords replace whole sections."""

    def call(**sections: Any) -> PreferenceData:
        for name, count, per_prompt in (("a", 12, 2), ("b", 8, 1), ("held_out", 4, 1)):
            rows = [
                {"prompt": f"{name} {number // per_prompt}?", "chosen": f"it is {number}", "rejected": "no idea" * 3}
                for number in range(count)
            ]
            write_jsonl(tmp_path / f"{name}.jsonl", rows)
        config: dict[str, Any] = {
            "model": {"name": str(tiny_model)},
            "chat": {"max_length": 128},
            "datasets": {"a": {"path": "a.jsonl"}, "b": {"path": "b.jsonl"}},
            "stages": [
                {"name": "one", "until_step": 2, "mix": {"a": 1}},
                {"name": "two", "until_step": 5, "mix": {"a": 1, "b": 2}},
            ],
            "training": {"rows_per_step": 4, "micro_batch_size": 2},
        }
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump({**config, **sections}, sort_keys=False))
        return prepare_data(load_config(path, DPOConfig), tokenizer, lambda line: None)

    return call


def test_the_stages_are_drawn_in_their_order(data):
    found = data()
    drawn = [[draw.dataset for draw in found.curriculum.step(step)] for step in range(found.max_steps)]
    assert found.max_steps == 5
    assert drawn[:2] == [["a"] * 4] * 2
    later = [name for step in drawn[2:] for name in step]
    assert (later.count("a"), later.count("b")) == (4, 8)
    assert [ledger.rows for ledger in found.ledgers] == [12, 8]


def test_a_fraction_is_held_out_of_every_data_set_and_takes_whole_prompts(data, tokenizer):
    found = data(validation={"fraction": 0.25})
    # 3 of 12 pairs would split the two pairs of a prompt, so 2 are held out; and 2 of 8.
    assert {name: len(dataset) for name, dataset in found.datasets.items()} == {"a": 10, "b": 6}
    assert len(found.validation) == 4
    trained = {content for dataset in found.datasets.values() for content in dataset.contents.tolist()}
    assert trained.isdisjoint(found.validation.contents.tolist())
    assert found.curriculum.sizes == {"a": 10, "b": 6}


def test_a_validation_set_of_its_own_is_not_trained(data):
    found = data(validation={"dataset": {"path": "held_out.jsonl"}})
    assert isinstance(found.validation, PairedDataset)
    assert (len(found.validation), list(found.datasets)) == (4, ["a", "b"])
    assert [ledger.name for ledger in found.ledgers] == ["a", "b", "validation.dataset"]


def test_epochs_count_the_rows_that_are_left_to_train(data):
    stages = [{"name": "one", "epochs": 1, "mix": {"a": 1}}, {"name": "two", "epochs": 1.5}]
    found = data(stages=stages, validation={"fraction": 0.25})
    # 10 rows are 2.5 steps of 4; 1.5 × 16 rows are 6 steps.
    assert [stage.until_step for stage in found.curriculum.stages] == [3, 9]
    assert found.max_steps == 9
    assert found.curriculum.draws_per_dataset(1) == {"a": 15, "b": 9}


def test_n_samples_is_what_epochs_count(data):
    datasets = {"a": {"path": "a.jsonl", "n_samples": 5}}
    found = data(datasets=datasets, stages=[{"name": "one", "epochs": 2}])
    assert (len(found.datasets["a"]), found.max_steps) == (5, 3)


def test_max_steps_ends_training_before_the_last_stage_does_and_not_after(data):
    epochs = [{"name": "one", "epochs": 1}]
    assert data(stages=epochs, training={"rows_per_step": 4, "max_steps": 2}).max_steps == 2
    with pytest.raises(ConfigError, match="max_steps 6 is beyond the last stage, which ends at 5"):
        data(stages=epochs, training={"rows_per_step": 4, "max_steps": 6})
    with pytest.raises(ConfigError, match="warmup_steps 5 leaves no step of the 5"):
        data(stages=epochs, training={"rows_per_step": 4, "warmup_steps": 5})


def test_stages_whose_ends_turn_out_to_fall_are_refused(data):
    stages = [{"name": "one", "epochs": 1}, {"name": "two", "until_step": 4, "mix": {"a": 1}}]
    with pytest.raises(ConfigError, match="until_step is 4, but the stage begins at 5"):
        data(stages=stages)


def test_for_kto_each_pair_is_two_answers_on_the_same_side_of_a_split(data):
    found = data(method={"type": "kto"}, validation={"fraction": 0.25})
    assert all(isinstance(dataset, LabelledDataset) for dataset in found.datasets.values())
    assert {name: len(dataset) for name, dataset in found.datasets.items()} == {"a": 20, "b": 12}
    for dataset in (*found.datasets.values(), found.validation):
        good, bad = (dataset.contents[dataset.desirable == label].tolist() for label in (True, False))
        assert sorted(good) == sorted(bad)


def test_kto_takes_pairs_beside_labelled_answers(data, tmp_path: Path, write_jsonl):
    write_jsonl(tmp_path / "marked.jsonl", [{"prompt": f"{n}?", "completion": "no", "label": 0} for n in range(3)])
    datasets = {"a": {"path": "a.jsonl"}, "marked": {"type": "labelled", "path": "marked.jsonl"}}
    found = data(method={"type": "kto"}, datasets=datasets, stages=[{"name": "all", "epochs": 1}])
    assert {name: len(dataset) for name, dataset in found.datasets.items()} == {"a": 24, "marked": 3}
    assert isinstance(found.datasets["marked"], LabelledDataset)
    assert not found.datasets["marked"].desirable.any()


@pytest.mark.parametrize(("label", "told"), [(1, "true"), (0, "false")])
def test_answers_that_are_all_labelled_alike_are_refused(label: int, told: str, data, tmp_path: Path, write_jsonl):
    write_jsonl(tmp_path / "marked.jsonl", [{"prompt": f"{n}?", "completion": "x", "label": label} for n in range(3)])
    datasets = {"marked": {"type": "labelled", "path": "marked.jsonl"}}
    with pytest.raises(DataError, match=rf"every answer in datasets is labelled {told}; .* columns\.label"):
        data(method={"type": "kto"}, datasets=datasets, stages=[{"name": "all", "epochs": 1}])


def test_the_share_that_may_be_left_out_is_the_configs(data, tmp_path: Path, write_jsonl):
    rows = [{"prompt": f"{n}?", "chosen": "yes", "rejected": "yes" if n < 6 else "no"} for n in range(10)]
    write_jsonl(tmp_path / "half.jsonl", rows)
    sections: dict[str, Any] = {
        "datasets": {"half": {"path": "half.jsonl"}},
        "stages": [{"name": "all", "epochs": 1}],
    }
    with pytest.raises(DataError, match=r"datasets\.half: 60% of 10 records are left out .* max_dropped_share: 0\.5"):
        data(**sections)
    assert len(data(**sections, max_dropped_share=0.6).datasets["half"]) == 4
    held_out = {"validation": {"dataset": {"path": "half.jsonl"}}}
    with pytest.raises(DataError, match=r"^validation\.dataset: 60% of 10 records are left out"):
        data(**held_out)


def test_the_faults_of_all_data_sets_are_told_at_once(data, tmp_path: Path):
    (tmp_path / "c.jsonl").write_text('{"prompt": "a"}\n')
    (tmp_path / "d.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "b"}\n')
    datasets = {"c": {"path": "c.jsonl"}, "d": {"path": "d.jsonl"}}
    with pytest.raises(DataError) as refused:
        data(datasets=datasets, stages=[{"name": "all", "epochs": 1}])
    assert "c.jsonl has 1 bad record and no usable one" in str(refused.value)
    assert "d.jsonl: 1 record from which nothing can be learnt" in str(refused.value)


def test_masks_come_from_the_training_template_of_a_known_family(data, tokenizer, trl_template, monkeypatch, caplog):
    # GLM-4's training template writes the next turn's first token after an answer, so using it logs a warning.
    monkeypatch.setattr(tokenizer, "chat_template", trl_template("glm4moe"))
    with caplog.at_level("WARNING", "posttrain"):
        data(chat={"max_length": 256, "template": "tokenizer", "min_end_tokens_kept": 0})
    assert "rendered prefixes" in caplog.text
