"""The templates document every key with its default and its sentence."""

import re
from pathlib import Path
from typing import Any

import pytest
from config_reference import sections
from pydantic import BaseModel

from posttrain.config.load import load_config, read_raw
from posttrain.config.schema import schema_of
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.evaluate.config import EvalConfig
from posttrain.rl.config import RLConfig
from posttrain.sft.config import SFTConfig
from posttrain.synthesis.config import DataConfig
from test_shipped_configs import (
    DATA_TEMPLATE,
    EVAL_TEMPLATE,
    RL_TEMPLATE,
    ROOT,
    SAMPLING_TEMPLATE,
    SFT_TEMPLATE,
    TEMPLATES,
)

# Graders have their own catalogue, and the template shows only a few. The losses of a mixture have the keys of the
# methods plus a weight. Two-file datasets have the keys of SFT datasets, and sections of hub data sets those of files.
ELSEWHERE = (
    "graders.",
    "method (type: mixture).losses.",
    "datasets.NAME (type: two_files).",
    "datasets.NAME (type: hub).",
)


@pytest.mark.parametrize(("template", "model"), TEMPLATES.items(), ids=lambda part: getattr(part, "stem", ""))
def test_the_template_names_every_key_of_every_section(template: Path, model: type[BaseModel]):
    written = read_raw(template)
    for section in sections(schema_of(model)):
        places = [place for place in section.places if not place.startswith(ELSEWHERE)]
        named = {key for place in places for part in _parts_at(written, place) for key in part}
        named |= {key for place in places for key in _alternative(template.read_text(encoding="utf-8"), place)}
        if places == ["reference (type: model)"]:
            named |= set(written["model"])  # the comment refers to this section
        if places == ["datasets.NAME (type: hub)"]:
            named |= {key for part in _parts_at(written, "datasets.NAME (type: file)") for key in part}
        assert not places or named >= set(section.node["properties"]), section.places[0]


def _alternative(text: str, place: str) -> list[str]:
    """The keys of a section, and of its subsections, that a comment offers as an alternative, such as
    `method (type: ipo)`."""
    tag = re.search(r"\(((?:type|kind): \w+)\)", place)
    if tag:
        block = re.search(rf"(?:^ *#   .*\n)*^ *#   {tag[1]}\b.*\n(?:^ *#   .*\n)*", text, re.MULTILINE)
    else:  # a section that is null, or one of several alternatives, has its keys in the comment below it
        block = re.search(rf"^ *(?:# +)?{place.rpartition('.')[2]}: .*\n(?:^ *#   .*\n)+", text, re.MULTILINE)
    return re.findall(r"^ *# +(\w+):", block[0], re.MULTILINE) if block else []


def _parts_at(data: Any, place: str) -> list[dict[str, Any]]:
    """The sections of a config at a place such as `datasets.NAME (type: file).columns` or `stages.N`."""
    parts = [data]
    for step in place.split(".") if place else []:
        name, _, tag = step.partition(" (")
        if name in ("NAME", "N"):
            parts = [inner for part in parts for inner in (part.values() if name == "NAME" else part)]
        else:
            parts = [part[name] for part in parts if isinstance(part, dict) and part.get(name) is not None]
        if tag:
            key, value = tag.removesuffix(")").split(": ")
            value, *required = value.split(", ")
            parts = [part for part in parts if part.get(key, "file") == value and part.keys() >= {*required}]
    return [part for part in parts if isinstance(part, dict)]


def test_the_template_gives_the_default_of_everything_that_is_not_an_example():
    written = read_raw(SFT_TEMPLATE)
    examples = {
        "model": {"name": written["model"]["name"]},
        "datasets": {name: {"path": dataset["path"]} for name, dataset in written["datasets"].items()},
        "validation": {"dataset": written["validation"]["dataset"]},
        "stages": written["stages"],
    }
    with_defaults = SFTConfig.model_validate(examples, context={"base_dir": ROOT})
    assert load_config(SFT_TEMPLATE, SFTConfig) == with_defaults


def test_the_template_of_reinforcement_learning_does_too():
    written = read_raw(RL_TEMPLATE)
    examples = {
        "model": {"name": written["model"]["name"]},
        "dataserver": {"config": written["dataserver"]["config"]},
        "evaluation": {},
    }
    with_defaults = RLConfig.model_validate(examples, context={"base_dir": ROOT})
    assert load_config(RL_TEMPLATE, RLConfig) == with_defaults


def test_the_template_of_sampling_does_too():
    written = read_raw(SAMPLING_TEMPLATE)
    examples = {
        # The tags are the defaults, but without the section there would be none.
        "prompts": {key: written["prompts"][key] for key in ("path", "gold", "graders")} | {"reasoning": {}},
        "model": {"config": written["model"]["config"]},
        "graders": written["graders"],
        "keep": [{key: kept[key] for key in ("type", "path")} for kept in written["keep"]],
        "dedup": {},
        "decontaminate": {"against": written["decontaminate"]["against"]},
    }
    with_defaults = DataConfig.model_validate(examples, context={"base_dir": ROOT})
    assert load_config(SAMPLING_TEMPLATE, DataConfig) == with_defaults


def test_the_template_of_the_dataserver_does_too():
    written = read_raw(DATA_TEMPLATE)
    wanted = ("type", "path", "task", "gold", "graders", "tasks")
    datasets = {
        name: {key: dataset[key] for key in wanted if key in dataset} for name, dataset in written["datasets"].items()
    }
    # The tags are the defaults, but without the section there would be none. two_steps has a gate as an example.
    datasets["one_step"]["reasoning"] = {}
    datasets["two_steps"]["gates"] = ["short"]
    adaptive = written["adaptive"]
    examples = {
        "graders": written["graders"],
        "datasets": datasets,
        "stages": written["stages"],
        "adaptive": {
            "pools": {},
            "easy": adaptive["easy"],
            "replay": {"share": adaptive["replay"]["share"]},
        },
    }
    with_defaults = DataserverConfig.model_validate(examples, context={"base_dir": ROOT})
    assert load_config(DATA_TEMPLATE, DataserverConfig) == with_defaults


def test_the_template_of_evaluations_does_too():
    written = read_raw(EVAL_TEMPLATE)
    wanted = ("type", "config", "path", "gold", "graders", "tasks")
    tasks = {name: {key: task[key] for key in wanted if key in task} for name, task in written["tasks"].items()}
    # The tags are the defaults, but without the section there would be none.
    tasks["held_out"]["reasoning"] = {}
    tasks["two_steps"] |= {key: written["tasks"]["two_steps"][key] for key in ("prompts", "n", "k", "sampling")}
    models = {
        "base": {"config": written["models"]["base"]["config"], "weights": "base"},
        "tuned": written["models"]["tuned"],
        "served": {key: written["models"]["served"][key] for key in ("url", "model")},
    }
    examples = {"models": models, "graders": written["graders"], "tasks": tasks, "output": "runs/eval"}
    with_defaults = EvalConfig.model_validate(examples, context={"base_dir": ROOT})
    assert load_config(EVAL_TEMPLATE, EvalConfig) == with_defaults


@pytest.mark.parametrize(("template", "model"), TEMPLATES.items(), ids=lambda part: getattr(part, "stem", ""))
def test_the_template_has_the_sentence_of_every_key_as_a_comment(template: Path, model: type[BaseModel]):
    lines = [line.strip() for line in template.read_text().splitlines()]
    comments = " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))
    for section in sections(schema_of(model)):
        if all(place.startswith(ELSEWHERE) for place in section.places):
            continue
        for key, node in section.node["properties"].items():
            sentence = " ".join(node.get("description", "").split())
            assert sentence in comments, f"{section.places[0]}.{key}"
