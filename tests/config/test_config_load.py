"""Loading a config with overrides: all problems are reported at once, with their lines."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_config import Sample

from posttrain.config.load import load_config, read_raw
from posttrain.errors import ConfigError

GOOD = """\
name: x
training:
  learning_rate: 1e-5
  seed: 3
stages:
  - name: one
    until_step: 1e2
    mix: {a: 1}
data: data/a.jsonl
"""


@pytest.fixture
def config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A valid `config.yaml` in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = Path("config.yaml")
    path.write_text(GOOD)
    return path


def problems_of(path: Path, text: str, *overrides: str) -> list[str]:
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, Sample, overrides)
    return str(caught.value).splitlines()


def test_a_good_file_loads(config_file: Path):
    config = load_config(config_file, Sample)
    assert config.training.learning_rate == 1e-5
    assert config.stages[0].until_step == 100
    assert read_raw(config_file)["training"] == {"learning_rate": "1e-5", "seed": 3}


def test_one_problem_is_the_whole_message(config_file: Path):
    text = GOOD.replace("1e-5", "abc")
    assert problems_of(config_file, text) == [
        "config.yaml:3: training.learning_rate: should be a valid number, found 'abc'"
    ]


def test_all_problems_come_at_once_in_the_order_of_the_file(config_file: Path):
    text = GOOD.replace("learning_rate", "learnig_rate").replace("until_step", "until_stepp")
    assert problems_of(config_file, text, "training.seed=-1", "run=5") == [
        "config.yaml has 5 problems:",
        "  config.yaml:3: training.learnig_rate: unknown key; did you mean learning_rate?",
        "  config.yaml:6: stages.0.until_step: missing: this key is required",
        "  config.yaml:7: stages.0.until_stepp: unknown key; did you mean until_step?",
        "  --set training.seed=-1: training.seed: should be greater than or equal to 0, found -1",
        "  --set run=5: run: unknown key; did you mean runs?",
    ]


def test_a_missing_key_of_the_file_is_told_at_its_first_line(config_file: Path):
    assert problems_of(config_file, "# x\n\nruns: a\n") == ["config.yaml:3: name: missing: this key is required"]


def test_a_rule_of_a_section_is_told_at_the_section(config_file: Path):
    assert problems_of(config_file, "name: x\ntraining:\n  seed: 1\n  rows: 6\n") == [
        "config.yaml:2: training: micro 4 does not divide rows 6"
    ]
    assert problems_of(config_file, "name: x\n", "training.rows=6") == [
        "--set training.rows=6: training: micro 4 does not divide rows 6"
    ]


def test_later_overrides_win(config_file: Path):
    overrides = ["training={seed: 1, rows: 8}", "training.seed=7", "training.seed=8"]
    training = load_config(config_file, Sample, overrides).training
    assert (training.seed, training.rows, training.learning_rate) == (8, 8, 2e-4)


def test_an_override_takes_the_blame_for_what_it_replaced(config_file: Path):
    assert problems_of(config_file, GOOD, "stages=[{name: a}]") == [
        "--set stages=[{name: a}]: stages.0.until_step: missing: this key is required"
    ]
    assert problems_of(config_file, GOOD, "stages.0.mix.b=x") == [
        "--set stages.0.mix.b=x: stages.0.mix.b: should be a valid number, found 'x'"
    ]


def test_overrides_that_fail_come_with_the_files_problems_and_without_their_echo(config_file: Path):
    text = GOOD.replace("name: x\n", "").replace("seed: 3", "seed: x")
    assert problems_of(config_file, text, "name=[", "stages.4.name=x", "nonsense") == [
        "config.yaml has 4 problems:",
        "  config.yaml:3: training.seed: should be a valid integer, found 'x'",
        "  --set name=[: the value is not valid YAML: while parsing a flow node on line 1, expected the node content, "
        "but found '<stream end>'; indent with spaces, or put the value in quotes",
        "  --set stages.4.name=x: there is no stages.4: the list has items 0 to 0",
        "  --set nonsense: write it as key=value, such as --set training.seed=1",
    ]


def test_an_override_that_fails_is_an_error_even_where_the_rest_is_good(config_file: Path):
    with pytest.raises(ConfigError, match="the value is not valid YAML"):
        load_config(config_file, Sample, ["training.seed=["])


def test_paths_start_from_the_folder_of_what_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "configs").mkdir()
    (tmp_path / "here").mkdir()
    path = tmp_path / "configs/config.yaml"
    path.write_text(GOOD)
    monkeypatch.chdir(tmp_path / "here")
    config = load_config(Path("../configs/config.yaml"), Sample)
    assert config.data == tmp_path / "configs/data/a.jsonl"
    assert config.runs == tmp_path / "configs/runs"
    config = load_config(path, Sample, ["data=b.jsonl", "runs=~/r"])
    assert (config.data, config.runs) == (tmp_path / "here/b.jsonl", tmp_path / "home/r")


def test_a_config_keeps_nothing_of_its_file(config_file: Path, tmp_path: Path):
    (tmp_path / "other.yaml").write_text("\n\n" + GOOD)
    assert load_config(config_file, Sample) == load_config(Path("other.yaml"), Sample)


def test_secrets_are_not_shown(config_file: Path):
    text = "name: {api_key: hunter2}\nserver:\n  api_key: hunter2hunter2\n  port: x\n  token: hunter2\n"
    problems = "\n".join(problems_of(config_file, text, "server.api_key=[hunter2]"))
    assert "hunter2" not in problems
    assert "name: should be text, found {'api_key': '***'}" in problems
    assert "--set server.api_key=***: server.api_key: should be text, found ***" in problems


def test_a_long_value_is_cut(config_file: Path):
    [problem] = problems_of(config_file, f"name: x\ndata: [{'y' * 500}]\n")
    assert len(problem) < 130


yaml_like = st.text(alphabet=st.sampled_from(list("ab:-?[]{}&*!|>'\"#,=. \n\t1")), max_size=40)


@given(
    st.one_of(st.text(max_size=60), yaml_like),
    st.lists(st.one_of(st.text(max_size=20), yaml_like), max_size=2),
)
def test_any_file_and_any_overrides_give_a_config_or_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, text: str, overrides: list[str]
):
    path = tmp_path_factory.getbasetemp() / "any_config.yaml"
    path.write_bytes(("name: x\n" + text).encode("utf-8", "surrogatepass"))
    try:
        load_config(path, Sample, overrides)
    except ConfigError as error:
        assert all(line.isprintable() for line in str(error).splitlines())
