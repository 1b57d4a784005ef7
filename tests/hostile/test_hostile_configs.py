"""Arbitrary bytes, arbitrary YAML and a valid config with one mistake either load or are refused readably."""

import copy
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile.hostile_values import NUMBERS, plain_values, profiles, refusal_of, texts, tried
from posttrain.config.load import load_config, read_raw
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.inference.config import load_inference_config
from posttrain.rl.config import RLConfig
from posttrain.runs.trained_run import load_trained_run
from posttrain.sft.config import SFTConfig
from test_shipped_configs import ROOT, SHIPPED, TEMPLATES, class_of

if TYPE_CHECKING:
    from pydantic import BaseModel

LOADERS: dict[str, Callable[[Path], object]] = {
    "toolkit-sft": functools.partial(load_config, model=SFTConfig),
    "toolkit-dpo": functools.partial(load_config, model=DPOConfig),
    "toolkit-rl-train": functools.partial(load_config, model=RLConfig),
    "toolkit-rl-dataserver": functools.partial(load_config, model=DataserverConfig),
    "toolkit-predict": load_inference_config,
    "toolkit-merge": load_trained_run,
}
EACH_COMMAND = pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS.keys())

ODD_YAML = [
    "",
    "~",
    "yes",
    "1e5",
    "1_000",
    "9" * 4000,
    "0x" + "f" * 4000,
    "1:2:3:4",
    ".nan",
    "-.inf",
    "2026-02-30",
    "2026-01-01T00:00:00Z",
    "!!python/object/apply:os.system [ls]",
    "!!python/name:os.system",
    "!!binary aGVsbG8=",
    "!!binary ====",
    "!!set {a, b}",
    "!!omap [a: 1]",
    "!!float x",
    "!mine x",
    "&a [*a]",
    "*missing",
    "&a x",
    "*a",
    "{<<: *a}",
    "{<<: [{a: 1}, 7]}",
    "{a: 1, a: 2}",
    "{1: x, ~: y, true: z}",
    "{[1, 2]: x}",
    "{{a: b}: c}",
    '"\\ud800"',
    '"\\x1b[31m"',
    '"\\u202e"',
    "'open",
    "[open",
    "|\n  block\n",
    "? key",
    "--- x",
    "%YAML 9.9",
    "@at",
    "\t",
]
SECTIONS = sorted({name for model in (SFTConfig, DPOConfig, RLConfig, DataserverConfig) for name in model.model_fields})

yaml_values = st.recursive(
    st.sampled_from(ODD_YAML) | plain_values.map(json.dumps),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.lists(st.tuples(texts.map(json.dumps) | st.sampled_from(SECTIONS), inner), max_size=3).map(
            lambda pairs: "{" + ", ".join(f"{key}: {value}" for key, value in pairs) + "}"
        )
    ),
    max_leaves=6,
)
yaml_configs = st.lists(st.tuples(st.sampled_from(SECTIONS) | texts.map(json.dumps), yaml_values), max_size=4).map(
    lambda pairs: "".join(f"{key}: {value}\n" for key, value in pairs)
)


def require_taken_or_refused(load: Callable[[Path], object], path: Path, data: bytes) -> None:
    path.write_bytes(data)
    message = refusal_of(lambda: load(path))
    assert message is None or "run.yaml" in message


@EACH_COMMAND
@profiles(quick=25, long=300)
def test_any_bytes_are_a_config_or_refused(load: Callable[[Path], object], examples: int, tmp_path: Path):
    @tried(examples)
    @given(st.binary(max_size=100) | texts.map(lambda text: text.encode("utf-8", "surrogatepass")))
    def check(data: bytes) -> None:
        require_taken_or_refused(load, tmp_path / "run.yaml", data)

    check()


@EACH_COMMAND
@profiles(quick=25, long=200)
def test_any_yaml_is_a_config_or_refused(load: Callable[[Path], object], examples: int, tmp_path: Path):
    @tried(examples)
    @given(yaml_configs)
    def check(text: str) -> None:
        require_taken_or_refused(load, tmp_path / "run.yaml", text.encode("utf-8", "surrogatepass"))

    check()


Pairs = list[tuple[str, Any]]


def as_pairs(value: Any) -> Any:
    """Turn mappings into lists of pairs, which can hold duplicate keys; lists stay lists."""
    if isinstance(value, dict):
        return {"pairs": [[key, as_pairs(item)] for key, item in value.items()]}
    return [as_pairs(item) for item in value] if isinstance(value, list) else value


def as_yaml(value: Any, indent: str = "") -> str:
    """Write the value over several lines, so that messages can give line numbers. Scalars are written as JSON, which
    YAML reads the same way."""
    inner = indent + "  "
    if isinstance(value, dict) and "pairs" in value:
        lines = [f"{inner}{json.dumps(key)}: {as_yaml(item, inner)}" for key, item in value["pairs"]]
        return "{" + ",".join(f"\n{line}" for line in lines) + "}"
    if isinstance(value, list):
        return "[" + ",".join(f"\n{inner}{as_yaml(item, inner)}" for item in value) + "]"
    return str(value) if isinstance(value, float) else json.dumps(value, default=str)


def mappings(value: Any) -> list[list[Any]]:
    """All mappings in the value, as lists of pairs."""
    if isinstance(value, dict) and "pairs" in value:
        return [value["pairs"], *(found for _, item in value["pairs"] for found in mappings(item))]
    return [found for item in value for found in mappings(item)] if isinstance(value, list) else []


def slip(draw: st.DrawFn, right: Any) -> Any:
    """The config with one mistake: a wrong value, or a key that is renamed, missing or duplicated."""
    wrong = copy.deepcopy(right)
    pairs = draw(st.sampled_from([found for found in mappings(wrong) if found]))
    at = draw(st.integers(0, len(pairs) - 1))
    what = draw(st.sampled_from(["value", "value", "number", "key", "gone", "twice"]))
    if what == "value":
        pairs[at][1] = draw(plain_values)
    elif what == "number":
        pairs[at][1] = draw(st.sampled_from(NUMBERS))
    elif what == "key":
        pairs[at][0] = draw(texts)
    elif what == "gone":
        del pairs[at]
    else:
        pairs.append(copy.deepcopy(pairs[at]))
    return wrong


with_a_slip = st.composite(slip)


@pytest.mark.parametrize(
    ("path", "examples"),
    [
        *[pytest.param(path, 25, id=f"quick-{path.name}") for path in TEMPLATES],
        *[pytest.param(path, 60, id=f"long-{path.relative_to(ROOT)}", marks=pytest.mark.long) for path in SHIPPED],
    ],
)
def test_one_slip_in_a_shipped_config_is_told_or_does_no_harm(path: Path, examples: int, tmp_path: Path):
    model: type[BaseModel] = class_of(path)

    @tried(examples)
    @given(with_a_slip(as_pairs(read_raw(path))))
    def check(wrong: Any) -> None:
        require_taken_or_refused(
            functools.partial(load_config, model=model), tmp_path / "run.yaml", as_yaml(wrong).encode()
        )

    check()


@pytest.mark.parametrize("path", SHIPPED[:1], ids=lambda path: path.name)
def test_a_config_without_a_slip_is_the_same_when_it_is_written_so(path: Path, tmp_path: Path):
    (tmp_path / "run.yaml").write_text(as_yaml(as_pairs(read_raw(path))))
    assert read_raw(tmp_path / "run.yaml") == read_raw(path)


@profiles(quick=25, long=300)
def test_any_override_is_taken_or_refused(examples: int):
    path = ROOT / "sft_config_template.yaml"
    keys = st.sampled_from([*SECTIONS, "training.seed", "stages.0.until_step", "stages.-1", "run.name"]) | texts

    @tried(examples)
    @given(keys, texts | yaml_values)
    def check(key: str, value: str) -> None:
        refusal_of(lambda: load_config(path, SFTConfig, [f"{key}={value}"]))
        refusal_of(lambda: load_config(path, SFTConfig, [key]))

    check()


KIB = 1024
LONG_TEXT = f'a: &a "{"x" * 500_000}"\n'
# Small files that expand to a lot or take long to read: the text, and part of the message.
BOMBS = {
    "a long text that is repeated": (
        LONG_TEXT + f"model: [{'*a, ' * 1000}]\n",
        "expand to more than 4194304 characters",
    ),
    "a long key that is repeated": (LONG_TEXT + f"model: [{'{*a : 1}, ' * 1000}]\n", "expand to more than"),
    "many keys that are merged": (
        "a: &a {" + ", ".join(f"k{number}: 1" for number in range(5_000)) + "}\nmodel: {<<: *a}\n",
        "run.yaml has more than 200 problems:",
    ),
    "thousands of unknown keys": (
        "".join(f"key{number}: 1\n" for number in range(3_000)),
        "run.yaml has more than 200 problems:",
    ),
    "one key of half a megabyte": (f"? {'k' * 500_000}\n: 1\n", f"{'k' * 99}…: unknown key"),
    "one value of half a megabyte": (f"model: {'v' * 500_000}\n", "run.yaml:1: model: "),
    "a name of half a megabyte": (
        f"run: {{name: {'n' * 500_000}}}\n",
        "run.name: a run's name must be a single folder name",
    ),
}


@pytest.mark.parametrize(("text", "message"), BOMBS.values(), ids=BOMBS.keys())
def test_a_small_file_costs_neither_memory_nor_minutes(text: str, message: str, tmp_path: Path):
    (tmp_path / "run.yaml").write_text(text)
    assert len(text) < 1024 * KIB
    # Most of that time is PyYAML's.
    refused = refusal_of(lambda: load_config(tmp_path / "run.yaml", SFTConfig), seconds=20)
    assert refused is not None and message in refused


def test_of_very_many_problems_twenty_are_told_and_the_others_counted(tmp_path: Path):
    (tmp_path / "run.yaml").write_text("".join(f"key{number}: 1\n" for number in range(50)))
    message = refusal_of(lambda: load_config(tmp_path / "run.yaml", SFTConfig))
    assert message is not None
    head, *lines = message.splitlines()
    # 50 unknown keys, plus the missing model, datasets and stages.
    assert head.endswith("run.yaml has 53 problems:")
    assert len(lines) == 21 and lines[-1] == "  ... and 33 more"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.rows_per_step=1e9", "training: rows_per_step 1000000000 is more than one step can have; at most"),
        ("training.rows_per_step=1e30", "training.rows_per_step: should be an integer that fits in 64 bits"),
        ("run.save_every=9223372036854775808", "run.save_every: should be an integer that fits in 64 bits, found 9"),
        (
            "run.save_every='99999999999999999999'",
            "run.save_every: should be an integer that fits in 64 bits, found '9",
        ),
        (
            "stages.0.until_step=-1e300",
            "stages.0.until_step: should be an integer that fits in 64 bits, found '-1e300'",
        ),
    ],
)
def test_a_number_that_could_only_be_counted_for_ever_is_refused(override: str, message: str):
    refused = refusal_of(lambda: load_config(ROOT / "sft_config_template.yaml", SFTConfig, [override]))
    assert refused is not None and message in refused


def test_an_epoch_count_that_is_no_number_of_steps_is_refused(tmp_path: Path):
    data = {name: {"path": f"{name}.jsonl"} for name in "ab"}
    config = {"model": {"name": "m"}, "datasets": data, "stages": [{"name": "s", "epochs": 1e308}]}
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    refused = refusal_of(lambda: load_config(tmp_path / "run.yaml", DPOConfig))
    assert refused is not None and "stage 's': 1e+308 epochs are more steps than can be counted" in refused
