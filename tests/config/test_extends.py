"""Config files that extend others: what the result holds, where errors are told, and where values came from."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue
from sample_config import Sample

from posttrain.config.dump import to_yaml
from posttrain.config.extends import MOST_FILES, extended_files, merged
from posttrain.config.load import load_config, read_raw
from posttrain.config.strict import StrictModel, TextFrom
from posttrain.config.values import FunctionPlace, LocalOrNamed
from posttrain.errors import ConfigError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, text: str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def problem_of(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, Sample, overrides)
    return str(caught.value)


BASE = "name: base\ntraining:\n  seed: 1\n  rows: 8\nstages:\n  - {name: a, until_step: 5, mix: {x: 1}}\n"


def test_mappings_are_merged_lists_replaced_and_the_file_itself_wins():
    write("base.yaml", BASE)
    path = write("run.yaml", "extends: base.yaml\ntraining:\n  seed: 2\nstages:\n  - {name: b, until_step: 9}\n")
    config = load_config(path, Sample)
    assert (config.name, config.training.seed, config.training.rows) == ("base", 2, 8)
    assert [(stage.name, stage.mix) for stage in config.stages] == [("b", {})]


def test_of_several_files_the_later_wins_and_each_may_extend_others():
    write("zero.yaml", "name: zero\ntraining: {seed: 0, rows: 4, micro: 2}\n")
    write("one.yaml", "extends: zero.yaml\nname: one\ntraining: {seed: 1}\n")
    write("two.yaml", "extends: zero.yaml\ntraining: {rows: 2}\n")
    path = write("run.yaml", "extends: [one.yaml, two.yaml]\n")
    config = load_config(path, Sample, ["training.micro=1"])
    assert (config.name, config.training.seed, config.training.rows, config.training.micro) == ("zero", 0, 2, 1)
    assert sorted(each.name for each in extended_files(path)) == ["one.yaml", "two.yaml", "zero.yaml"]


def test_a_config_that_is_named_by_a_link_is_none_of_the_files_that_it_extends(folder: Path):
    write("base.yaml", BASE)
    write("run.yaml", "extends: base.yaml\n")
    Path("link.yaml").symlink_to("run.yaml")
    assert extended_files(Path("link.yaml")) == [folder / "base.yaml"]


def test_null_replaces_a_mapping():
    write("base.yaml", "a: {b: 1}\nc: 2\n")
    assert read_raw(write("run.yaml", "extends: base.yaml\na: null\n")) == {"a": None, "c": 2}


def test_a_relative_path_starts_from_the_file_that_holds_it(folder: Path):
    write("shared/base.yaml", "extends: ../first.yaml\nname: x\ndata: a.jsonl\n")
    write("first.yaml", "runs: first\n")
    path = write("mine/run.yaml", "extends: ../shared/base.yaml\n")
    config = load_config(path, Sample)
    assert (config.data, config.runs) == (folder / "shared/a.jsonl", folder / "first")
    assert load_config(path, Sample, ["data=b.jsonl"]).data == folder / "b.jsonl"
    write("mine/run.yaml", "extends: ../shared/base.yaml\ndata: a.jsonl\n")
    assert load_config(path, Sample).data == folder / "mine/a.jsonl"
    (folder / "shared/base.yaml").write_text("name: x\n")
    assert load_config(path, Sample).runs == folder / "mine/runs"  # a default


class Names(StrictModel):
    model: LocalOrNamed
    function: FunctionPlace


def test_paths_within_other_texts_start_from_the_file_that_holds_them(folder: Path):
    (folder / "shared/models").mkdir(parents=True)
    write("shared/base.yaml", "model: models/misspelt\nfunction: f.py:score\n")
    config = load_config(write("run.yaml", "extends: shared/base.yaml\n"), Names)
    assert config.model == str(folder / "shared/models/misspelt")
    assert config.function == f"{folder}/shared/f.py:score"


def test_a_marked_text_is_pickled_as_text():
    import pickle

    assert type(pickle.loads(pickle.dumps(TextFrom("a", Path("/b"))))) is str


def test_each_error_is_told_at_the_line_of_the_file_that_holds_the_value():
    write("shared/base.yaml", "training:\n  seed: x\n  rows: 6\nserver:\n  port: y\n")
    path = write("run.yaml", "extends:\n  - shared/base.yaml\ntraining:\n  learning_rate: z\n  seed: 1\n")
    assert problem_of(path, "server.api_key=5").splitlines() == [
        "run.yaml has 4 problems:",
        "  run.yaml:1: name: missing: this key is required",
        "  run.yaml:4: training.learning_rate: should be a valid number, found 'z'",
        "  shared/base.yaml:5: server.port: should be a valid integer, found 'y'",
        "  --set server.api_key=***: server.api_key: should be text, found ***; put it in quotes",
    ]
    path.write_text("extends: shared/base.yaml\nname: x\ntraining: {seed: 1}\nserver: null\n")
    assert problem_of(path).splitlines() == [
        "run.yaml has 2 problems:",
        "  run.yaml:4: server: the section is empty; write its keys below it, or remove the line",
        "  shared/base.yaml:3: training: micro 4 does not divide rows 6",
    ]


@pytest.mark.parametrize(
    ("own", "override", "problem"),
    [
        ("{seed: 1}", "seed=2", "base.yaml:4: training: micro 3 does not divide rows 8"),
        ("{micro: 5}", "seed=2", "run.yaml:3: training: micro 5 does not divide rows 8; rows is set at base.yaml:3"),
        ("{micro: 5, rows: 6}", "seed=2", "run.yaml:3: training: micro 5 does not divide rows 6"),
        ("{micro: 4, rows: 6}", "micro=5", "run.yaml:3: training: micro 5 does not divide rows 6"),
        (
            "{seed: 1}",
            "micro=5",
            "--set training.micro=5: training: micro 5 does not divide rows 8; rows is set at base.yaml:3",
        ),
    ],
)
def test_what_is_wrong_with_a_merged_section_is_told_where_the_values_are_set(own: str, override: str, problem: str):
    write("base.yaml", "name: x\ntraining:\n  rows: 8\n  micro: 3\n")
    path = write("run.yaml", f"extends: base.yaml\n\ntraining: {own}\n")
    assert problem_of(path, f"training.{override}") == problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name: x\nextends: none.yaml\n", "run.yaml:2: extends: there is no file none.yaml; a path starts from the"),
        ("extends:\n- base.yaml\n- a/b.yaml\n", "run.yaml:3: extends: there is no file a/b.yaml;"),
        ("extends: folder\n", "run.yaml:1: extends: folder is a folder; give the YAML file in it"),
        ("extends: loop.yaml\n", "run.yaml:1: extends: there is no file loop.yaml;"),
        ("extends: run.yaml\n", "run.yaml:1: extends: the file would extend itself: run.yaml → run.yaml"),
        ("extends: cycle.yaml\n", "cycle.yaml:2: extends: the file would extend itself: run.yaml → cycle.yaml → run.y"),
        ("extends: bad.yaml\n", "bad.yaml:2: a: given twice, first on line 1; keep one"),
        ("extends: list.yaml\n", "list.yaml:1: the file contains a list; a config is `key: value` lines"),
        ("extends: 5\n", "run.yaml:1: extends: should be a file or a list of files, found 5"),
        ("extends:\n", "run.yaml:1: extends: should be a file or a list of files, found null"),
        ("extends: ['']\n", "run.yaml:1: extends: should be a file or a list of files, found ''"),
        ("extends: '~no-such-user-here/a'\n", "run.yaml:1: extends: the user after `~` has no home folder"),
        ("training:\n  extends: base.yaml\n", "  run.yaml:2: training.extends: unknown key here; extends belongs at"),
    ],
)
def test_what_cannot_be_extended_is_told_at_its_line(folder: Path, text: str, problem: str):
    write("base.yaml", BASE)
    write("cycle.yaml", "name: x\nextends: run.yaml\n")
    write("bad.yaml", "a: 1\na: 2\n")
    write("list.yaml", "- a\n")
    (folder / "folder").mkdir()
    (folder / "loop.yaml").symlink_to("loop.yaml")
    assert problem in problem_of(write("run.yaml", text))


def test_extends_is_for_files_alone():
    write("base.yaml", BASE)
    problem = problem_of(write("run.yaml", "name: x\n"), "extends=base.yaml")
    assert problem == "--set extends=base.yaml: extends: unknown key here; extends belongs at the top of a file"


def test_files_that_extend_each_other_crosswise_are_read_once_and_not_without_end():
    write("0.yaml", "name: x\n")
    for number in range(1, MOST_FILES):
        write(f"{number}.yaml", f"extends: [{number - 1}.yaml, {number - 1}.yaml]\n")
    assert load_config(Path(f"{MOST_FILES - 1}.yaml"), Sample).name == "x"
    path = write("more.yaml", f"extends: {MOST_FILES - 1}.yaml\n")
    assert problem_of(path) == "1.yaml:1: extends: 0.yaml is one file too many; at most 20 belong to a config"


def test_the_dump_needs_no_other_file_and_says_where_each_value_came_from(folder: Path):
    text = f"name: |\n  two\n  lines\n{BASE.removeprefix('name: base')}data: a.jsonl\ntargets: [q, v]\n"
    write("shared/base.yaml", text)
    path = write("run.yaml", "extends: shared/base.yaml\ntraining:\n  seed: 3\n")
    config = load_config(path, Sample, ["training.rows=4", "server={port: 7}"])
    dump = to_yaml(config)
    assert dump.startswith(
        "# shared/base.yaml:1\nname: 'two\n\n  lines\n\n  '\ntraining:\n  learning_rate: 0.0002\n"
        "  seed: 3  # run.yaml:3\n  rows: 4  # --set training.rows=4\n  micro: 4\n"
    )
    for line in (
        "  until_step: 5  # shared/base.yaml:9",
        f"data: {folder}/shared/a.jsonl  # shared/base.yaml:10",
        "- v  # shared/base.yaml:11",
        "  port: 7  # --set server={port: 7}",
    ):
        assert f"{line}\n" in dump
    assert "runs: " + str(folder / "runs") + "\n" in dump
    other = write("elsewhere/dump.yaml", dump)
    assert load_config(other, Sample) == config


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["x", "a: b # c", "n" * 200, "l\nm "]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
    max_leaves=12,
)
MAPPINGS = st.dictionaries(st.sampled_from("abcd"), PLAIN, max_size=4)


def plain_merge(base: Any, own: Any) -> Any:
    """The rule of the docs, written down the other way: own keys set one after another in a copy of the base."""
    result = dict(base)
    for key, value in own.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = plain_merge(result[key], value) if both else value
    return result


@given(MAPPINGS, MAPPINGS, MAPPINGS)
def test_merging_is_a_plain_recursive_merge(one: Any, two: Any, three: Any):
    assert merged(one, two) == plain_merge(one, two)
    assert merged(merged(one, two), three) == plain_merge(plain_merge(one, two), three)
    assert merged(one, {}) == merged({}, one) == merged(one, one) == one


class Anything(StrictModel):
    any: dict[str, JsonValue]


@given(MAPPINGS, MAPPINGS)
def test_files_give_what_merging_gives_and_a_dump_with_origins_loads_back_equal(one: Any, two: Any):
    import yaml

    write("base.yaml", yaml.safe_dump({"any": one}))
    path = write("run.yaml", "extends: base.yaml\n" + yaml.safe_dump({"any": two}))
    config = load_config(path, Anything)
    assert config.any == plain_merge(one, two)
    assert load_config(write("dump.yaml", to_yaml(config)), Anything) == config
