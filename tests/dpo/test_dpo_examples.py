"""The example's pairs are what its generator makes, and every shipped config passes a dry run."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from config_reference import sections

from posttrain.config.load import load_config, read_raw
from posttrain.config.schema import json_schema, schema_of
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.dpo.plan import show_plan
from posttrain.inference.config import InferenceConfig
from posttrain.models.location import PACKAGED

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "preferences"
TEMPLATE = ROOT / "dpo_config_template.yaml"
CONFIGS = sorted((ROOT / "configs" / "dpo").glob("*.yaml"))


@pytest.fixture(scope="module")
def generated() -> dict[str, list[dict[str, str]]]:
    return runpy.run_path(str(EXAMPLE / "generate.py"))["generate"]()


def test_the_committed_files_are_what_the_generator_makes(generated):
    assert {name: len(rows) for name, rows in generated.items()} == {"held_out.jsonl": 100, "train.jsonl": 600}
    for name, rows in generated.items():
        committed = [json.loads(line) for line in (EXAMPLE / name).read_text(encoding="utf-8").splitlines()]
        assert committed == rows


def test_no_question_is_asked_twice(generated):
    questions = [row["prompt"] for rows in generated.values() for row in rows]
    assert len(set(questions)) == 700


def test_both_answers_give_the_same_facts_and_the_chosen_one_is_short(generated):
    for row in (row for rows in generated.values() for row in rows):
        chosen, rejected = row["chosen"], row["rejected"]
        assert len(chosen.split()) == 1 and len(rejected.split()) > 12
        assert re.search(rf"\b{re.escape(chosen.rstrip('.').lower())}\b", rejected.lower()), row


@pytest.mark.parametrize("path", [*CONFIGS, EXAMPLE / "dpo.yaml", TEMPLATE], ids=lambda path: path.name)
def test_a_dry_run_finds_nothing_wrong(
    path: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """A tiny model replaces the packaged one, whose conversion would take 20 seconds."""
    config = load_config(path, DPOConfig)
    assert config.model.name in PACKAGED, "a config that is tried first should need no hub"
    assert load_config(path, InferenceConfig).generation == config.generation
    overrides = [f"model.name={tiny_model}", f"run.output_dir={tmp_path}", "chat.max_length=256"]
    show_plan(load_config(path, DPOConfig, overrides), path.stem)
    shown = capsys.readouterr().err
    assert "nothing was trained (--dry-run)" in shown
    assert all(stage.name in shown for stage in config.stages)


@pytest.mark.parametrize("path", [*CONFIGS, TEMPLATE], ids=lambda path: path.name)
def test_editors_find_the_schema_from_the_first_line(path: Path):
    header, schema = path.read_text().splitlines()[0].split("=")
    assert header == "# yaml-language-server: $schema"
    assert (path.parent / schema).resolve() == ROOT / "configs" / "dpo" / "schema.json"


def test_the_schema_is_that_of_the_config():
    written = (ROOT / "configs" / "dpo" / "schema.json").read_text(encoding="utf-8")
    assert written == json_schema(DPOConfig), "python docs/render.py"


def test_the_template_has_the_sentence_of_every_key_as_a_comment():
    lines = [line.strip() for line in TEMPLATE.read_text().splitlines()]
    comments = " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))
    for section in sections(schema_of(DPOConfig)):
        for key, node in section.node["properties"].items():
            sentence = " ".join(node.get("description", "").split())
            assert sentence in comments, f"{section.places[0]}.{key}"


def test_the_template_gives_the_default_of_everything_that_is_not_an_example():
    written = read_raw(TEMPLATE)
    examples: dict[str, Any] = {
        "model": {"name": written["model"]["name"]},
        "datasets": {name: {"path": dataset["path"]} for name, dataset in written["datasets"].items()},
        "validation": {"dataset": {"path": written["validation"]["dataset"]["path"]}},
        "stages": written["stages"],
    }
    assert load_config(TEMPLATE, DPOConfig) == DPOConfig.model_validate(examples, context={"base_dir": ROOT})


def _commented_sections() -> dict[str, dict[str, Any]]:
    """The values of each method that the template has as a comment, as text, by its type."""
    found: dict[str, dict[str, Any]] = {}
    for block in TEMPLATE.read_text().split("  #\n"):
        keys = re.findall(r"^  #   (\w+): (.+)$", block, flags=re.MULTILINE)
        if keys and keys[0][0] == "type":
            found[keys[0][1]] = {key: value for key, value in keys[1:] if re.fullmatch(r"[\d.]+", value)}
    return found


def test_the_methods_that_the_template_has_as_comments_have_their_defaults():
    found = _commented_sections()
    kinds = ("ipo", "hinge", "robust", "exo", "apo_zero", "apo_down", "kto", "orpo", "simpo", "cpo")
    assert found.keys() >= {*kinds, "mixture", "sft", "live", "model"}
    base = {"model": {"name": "x"}, "datasets": {"a": {"path": "a.jsonl"}}, "stages": [{"name": "a", "epochs": 1}]}
    for kind in kinds:
        method = DPOConfig.model_validate({**base, "method": {"type": kind}}).method
        assert {key: float(value) for key, value in found[kind].items()} == method.model_dump(exclude={"type"})
