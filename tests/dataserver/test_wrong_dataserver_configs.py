"""Wrong configs of toolkit-rl-dataserver: one message with the line, the key and the fix, and exit code 2."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.refusals import contents, the_one_error
from dataserver.dataserver_cases import questions, write_rows
from posttrain.cli.rl_dataserver import main

RIGHT = """\
datasets:
  sums:
    path: sums.jsonl
    graders: {string_exact: 2, tidy: 1}
    gates: [short]
  words:
    path: words.jsonl
    reasoning: {}
    graders: {string_exact: 1, reasoning_format: 1}
graders:
  short: {type: completion_length_cap, max_tokens: 100}
  tidy: {type: regex, pattern: "[0-9]+"}
stages:
  - name: warm-up
    until_step: 2
    mix: {sums: 1}
  - name: main
    until_step: 4
    mix: {sums: 1, words: 2}
    grading:
      words: {graders: {string_exact: 1}}
"""

# By fault: the text to replace in the config (if empty, append as line 22), its replacement, and the message.
WRONG_KEYS = {
    "a misspelled key": ("stages:", "stagse:", "run.yaml:13: stagse: unknown key; did you mean stages?"),
    "a misspelled key of a data set without a type": (
        "    path: sums.jsonl\n",
        "    path: sums.jsonl\n    colums: {}\n",
        "run.yaml:4: datasets.sums.colums: unknown key; did you mean columns?",
    ),
    "an unknown type of data set": (
        "    path: sums.jsonl\n",
        "    type: fiel\n    path: sums.jsonl\n",
        "run.yaml:3: datasets.sums.type: should be one of: file, hub, reasoning_gym, found 'fiel'; did you mean file?",
    ),
    "a key of the other type of data set": (
        "    path: sums.jsonl\n",
        "    type: reasoning_gym\n    task: leg_counting\n    path: sums.jsonl\n",
        "run.yaml:5: datasets.sums.path: unknown key; the keys here are: system, reasoning, graders, gates, "
        "on_missing_score, validation_fraction, type, task, rows, params",
    ),
    "no path": ("    path: sums.jsonl\n", "", "run.yaml:2: datasets.sums.path: missing: this key is required"),
    "a file in the place of a data set": (
        "  sums:\n",
        "  more: sums.jsonl\n  sums:\n",
        "run.yaml:2: datasets.more: should be a section, found 'sums.jsonl'",
    ),
    "a name of a data set that is blank": (
        "  sums:\n    path: sums.jsonl\n",
        '  " ":\n    path: sums.jsonl\n',
        'run.yaml:2: datasets." ": a data set\'s name must have 1 to 100 characters',
    ),
    "two names for one column": (
        "    path: sums.jsonl\n",
        "    path: sums.jsonl\n    columns: {prompt: messages}\n",
        "run.yaml:4: datasets.sums.columns: messages cannot mean two things at once; rename one of them",
    ),
    "all of the data held out": (
        "    path: sums.jsonl\n",
        "    path: sums.jsonl\n    validation_fraction: 1\n",
        "run.yaml:4: datasets.sums.validation_fraction: should be less than 1, found 1",
    ),
    "a tag inside the other": (
        "reasoning: {}",
        "reasoning: {open: <t>, close: <t><t>}",
        "run.yaml:8: datasets.words.reasoning: '<t>' and '<t><t>' must not contain one another",
    ),
    "a rule that is none": (
        "    path: sums.jsonl\n",
        "    path: sums.jsonl\n    gold: {extract: nonsense}\n",
        "run.yaml:4: datasets.sums.gold.extract: should be 'boxed', 'last_number' or 'all'; or should be a section "
        "with after; or should be a section with regex, found 'nonsense'",
    ),
    "two rules at once": (
        "    path: sums.jsonl\n",
        "    path: sums.jsonl\n    gold: {extract: {after: x, regex: y}}\n",
        "run.yaml:4: datasets.sums.gold.extract: give one of `after` and `regex`, not both",
    ),
    "a rule with a misspelled key": (
        "    path: sums.jsonl\n",
        "    path: sums.jsonl\n    gold: {extract: {after: x, regx: y}}\n",
        "run.yaml:4: datasets.sums.gold.extract.regx: unknown key; the keys here are: after",
    ),
    "a marker that YAML takes for a comment": (
        "    path: sums.jsonl\n",
        "    path: sums.jsonl\n    gold:\n      extract:\n        after: ####\n",
        "run.yaml:6: datasets.sums.gold.extract.after: should be text, found null",
    ),
    "a pattern that RE2 does not know": (
        'pattern: "[0-9]+"',
        'pattern: "(?=x)"',
        "run.yaml:12: graders.tidy.pattern: not a pattern in RE2 syntax: invalid perl operator: (?=. RE2 has no "
        "look-around such as (?=…) or (?<!…), no back-references such as \\1, and no repetition above 1000",
    ),
    "a date for a parameter": (
        "    path: sums.jsonl\n",
        "    type: reasoning_gym\n    task: leg_counting\n    params: {max_animals: 2024-01-01}\n",
        "run.yaml:5: datasets.sums.params.max_animals: input was not a valid JSON value",
    ),
    "other machines without a token": (
        "",
        "listen: {host: 0.0.0.0}\n",
        "run.yaml:22: listen: on host 0.0.0.0 other machines can reach this server; set token_env to the name "
        "of an environment variable that holds a token",
    ),
    "a host name without a token": (
        "",
        "listen: {host: gpu-7.example.org}\n",
        "run.yaml:22: listen: on host gpu-7.example.org other machines can reach this server; set token_env to "
        "the name of an environment variable that holds a token",
    ),
    "a grader that may take longer than a request": (
        "",
        "limits: {grader_seconds: 60}\n",
        "run.yaml:22: limits: grader_seconds 60 leaves no time for an answer within grade_seconds 30; raise "
        "grade_seconds",
    ),
    "less room for all requests than for one": (
        "",
        "limits: {body_mb: 300}\n",
        "run.yaml:22: limits: bodies_mb 256 (for all requests together) is less than body_mb 300 (for one); raise "
        "bodies_mb",
    ),
}

WRONG_GRADING = {
    "a misspelled grader": (
        "tidy: 1}",
        "tidyy: 1}",
        "run.yaml:4: datasets.sums.graders.tidyy: there is no grader 'tidyy' in the section graders, and no built-in "
        "one; did you mean 'tidy'?",
    ),
    "a misspelled built-in grader": (
        "string_exact: 2",
        "string_exat: 2",
        "run.yaml:4: datasets.sums.graders.string_exat: there is no grader 'string_exat' in the section graders, and "
        "no built-in one; did you mean 'string_exact'?",
    ),
    "a built-in grader without its parameters": (
        "tidy: 1}",
        "completion_length_cap: 1}",
        "run.yaml:4: datasets.sums.graders.completion_length_cap: the built-in grader completion_length_cap needs "
        "parameters (max_tokens); define it in the section graders with type: completion_length_cap",
    ),
    "a misspelled gate": (
        "[short]",
        "[tidy, shrt]",
        "run.yaml:5: datasets.sums.gates.1: there is no grader 'shrt' in the section graders, and no built-in one; "
        "did you mean 'short'?",
    ),
    "a gate twice": (
        "[short]",
        "[short, short]",
        "run.yaml:5: datasets.sums.gates: short would count twice; name each gate once",
    ),
    "weights that are all 0": (
        "{string_exact: 2, tidy: 1}",
        "{string_exact: 0, tidy: 0}",
        "run.yaml:4: datasets.sums.graders: no grader has a weight above 0, so every reward would be undefined; raise "
        "one of them",
    ),
    "a negative weight": (
        "tidy: 1}",
        "tidy: -1}",
        "run.yaml:4: datasets.sums.graders.tidy: should be greater than or equal to 0, found -1",
    ),
    "a weight whose sum is infinite": (
        "tidy: 1}",
        "tidy: 1.0e+308}",
        "run.yaml:4: datasets.sums.graders.tidy: should be less than or equal to 1000000, found 1e+308",
    ),
    "a list of graders": (
        "{string_exact: 2, tidy: 1}",
        "[string_exact]",
        "run.yaml:4: datasets.sums.graders: should be a mapping of names to values, found ['string_exact']",
    ),
    "no tags for a grader that wants them": (
        "    reasoning: {}\n",
        "",
        "run.yaml:8: datasets.words.graders.reasoning_format: the grader reasoning_format needs the data set's "
        "`reasoning` section (its tags)",
    ),
    "no gold for a grader that wants it": (
        "    path: words.jsonl\n",
        "    path: words.jsonl\n    gold: null\n",
        "run.yaml:10: datasets.words.graders.string_exact: the grader string_exact compares with the gold answer, but "
        "`gold` is null",
    ),
    "the name of another built-in grader": (
        "  short: {",
        "  choice: {",
        "run.yaml:11: graders.choice: choice is the name of a built-in grader; choose another name",
    ),
    "a grader that runs code": (
        "tidy: 1}",
        "code_stdio: 1}",
        "run.yaml:4: datasets.sums.graders.code_stdio: the grader code_stdio runs code that a model wrote; set "
        "allow_code_execution: true first",
    ),
    "an unknown type of grader": (
        "{type: completion_length_cap, max_tokens: 100}",
        "{type: completion_length, max_tokens: 100}",
        "did you mean completion_length_cap?",
    ),
}

WRONG_STAGES = {
    "stages out of order": (
        "until_step: 4",
        "until_step: 2",
        "run.yaml:13: stages: stage 'main': until_step is 2, but the stage begins at 2; until_step counts from the "
        "start of the run, so raise it to 3 or more",
    ),
    "two stages of one name": (
        "name: main",
        "name: warm-up",
        "run.yaml:13: stages: stage 'warm-up': there are two stages with this name; rename one",
    ),
    "a stage of nothing": (
        "mix: {sums: 1}",
        "mix: {sums: 0}",
        "run.yaml:16: stages.0.mix: all weights are 0, so there is nothing to draw; raise one of them",
    ),
    "a share too small to be kept": (
        "mix: {sums: 1, words: 2}",
        "mix: {sums: 1, words: 1e-6}",
        "run.yaml:13: stages: stage 'main': data set 'words': its share of the stage, 1e-06, is less than one row in "
        "65536; raise its weight, or leave it out",
    ),
    "an unknown data set in a mix": (
        "mix: {sums: 1}",
        "mix: {sum: 1}",
        "run.yaml:13: stages: stage 'warm-up': there is no data set 'sum'; known: sums, words",
    ),
    "an unknown data set in a stage's grading": (
        "      words: {",
        "      wrods: {",
        "run.yaml:21: stages.1.grading.wrods: there is no data set 'wrods'; known: sums, words",
    ),
    "the grading of a data set that the stage does not draw from": (
        "    mix: {sums: 1}\n",
        "    mix: {sums: 1, words: 0}\n    grading: {words: {gates: []}}\n",
        "run.yaml:17: stages.0.grading.words: the stage draws nothing from 'words'; add it to the mix, or remove this",
    ),
    "a misspelled grader in a stage": (
        "words: {graders: {string_exact: 1}}",
        "words: {graders: {string_exat: 1}}",
        "run.yaml:21: stages.1.grading.words.graders.string_exat: there is no grader 'string_exat' in the section "
        "graders, and no built-in one; did you mean 'string_exact'?",
    ),
    "a misspelled gate in a stage": (
        "words: {graders: {string_exact: 1}}",
        "words: {gates: [shrt]}",
        "run.yaml:21: stages.1.grading.words.gates.0: there is no grader 'shrt' in the section graders, and no "
        "built-in one; did you mean 'short'?",
    ),
    "weights of a stage that are all 0": (
        "words: {graders: {string_exact: 1}}",
        "words: {graders: {string_exact: 0}}",
        "run.yaml:21: stages.1.grading.words.graders: no grader has a weight above 0, so every reward would be "
        "undefined; raise one of them",
    ),
    "a stride that passes over a stage": (
        "",
        "iteration_stride: 4\n",
        "run.yaml:22: iteration_stride: stage 'main' has no iteration divisible by 4, so nothing would ever be drawn "
        "from it; end it at 8 or later",
    ),
}

WRONG_PATHS = {
    "an absolute path": ("/etc/passwd", "'/etc/passwd' is outside data_root; give a relative path that stays inside"),
    "a path upwards": ("../sums.jsonl", "'../sums.jsonl' is outside data_root; give a relative path that stays inside"),
    "a path upwards in the middle": (
        "a/../../sums.jsonl",
        "'a/../../sums.jsonl' is outside data_root; give a relative path that stays inside",
    ),
    "the home folder": ("~/sums.jsonl", "'~/sums.jsonl' is outside data_root; give a relative path that stays inside"),
    "a NUL": ('"sums\\0.jsonl"', "the path holds a NUL character, which no file name can have"),
    "an empty path": ('""', "should have at least 1 character, found ''"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the config above as run.yaml and its two data sets."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(RIGHT)
    for name in ("sums", "words"):
        write_rows(tmp_path / f"{name}.jsonl", questions(name, 4))
    return tmp_path


def replace(folder: Path, old: str, new: str) -> None:
    assert not old or RIGHT.count(old) == 1, old
    (folder / "run.yaml").write_text(RIGHT.replace(old, new) if old else RIGHT + new)


@pytest.fixture
def refusal(folder: Path) -> Callable[..., str]:
    """`refusal(old, new, *arguments)` changes the config and returns the one error of the command.

    It checks that the exit code is 2, there is no traceback, and no file has changed.
    """

    def run(old: str, new: str, *arguments: str) -> str:
        replace(folder, old, new)
        before = contents(folder)
        result = CliRunner().invoke(main, ["run.yaml", "--dry-run", *arguments])
        assert result.exit_code == 2, result.output
        assert contents(folder) == before
        return the_one_error(result.stderr, result.stdout)

    return run


def test_the_right_config_is_right(folder: Path) -> None:
    result = CliRunner().invoke(main, ["run.yaml", "--dry-run"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(("old", "new", "message"), WRONG_KEYS.values(), ids=WRONG_KEYS.keys())
def test_a_wrong_key_or_value_is_told_with_its_line(
    old: str, new: str, message: str, refusal: Callable[..., str]
) -> None:
    told = refusal(old, new).splitlines()
    # One fault may cause others: a misspelled `stages` is also a missing one.
    assert message in [line.strip() for line in told]


@pytest.mark.parametrize(("old", "new", "message"), WRONG_GRADING.values(), ids=WRONG_GRADING.keys())
def test_wrong_grading_is_told_at_the_name_of_the_grader(
    old: str, new: str, message: str, refusal: Callable[..., str]
) -> None:
    assert message in refusal(old, new)


@pytest.mark.parametrize(("old", "new", "message"), WRONG_STAGES.values(), ids=WRONG_STAGES.keys())
def test_a_wrong_stage_is_told_with_its_line(old: str, new: str, message: str, refusal: Callable[..., str]) -> None:
    assert refusal(old, new) == message


@pytest.mark.parametrize(("path", "message"), WRONG_PATHS.values(), ids=WRONG_PATHS.keys())
def test_a_path_that_leaves_the_data_root_is_refused(path: str, message: str, refusal: Callable[..., str]) -> None:
    assert refusal("path: sums.jsonl", f"path: {path}") == f"run.yaml:3: datasets.sums.path: {message}"


def test_all_that_is_wrong_is_told_at_once_by_line(refusal: Callable[..., str]) -> None:
    head, *problems = refusal(
        "tidy: 1}",
        "tidyy: -1}\n    gold: {column: 3, extract: {after: ''}}\n    nope: 1",
        *("--set", "limits.workers=0", "--set", "listen.prot=1"),
    ).splitlines()
    assert head == "run.yaml has 6 problems:"
    assert problems == [
        "  run.yaml:4: datasets.sums.graders.tidyy: should be greater than or equal to 0, found -1",
        "  run.yaml:5: datasets.sums.gold.column: should be text, found 3; put it in quotes",
        "  run.yaml:5: datasets.sums.gold.extract.after: should have at least 1 character, found ''",
        "  run.yaml:6: datasets.sums.nope: unknown key; the keys here are: system, reasoning, graders, gates, "
        "on_missing_score, validation_fraction, format, columns, max_prompt_chars, max_prompt_percentile, strip_tags, "
        "gold, task_column, tasks, type, path",
        "  --set limits.workers=0: limits.workers: should be greater than or equal to 1, found 0",
        "  --set listen.prot=1: listen.prot: unknown key; did you mean port?",
    ]


def test_all_graders_that_are_wrong_are_told_at_once_each_at_its_line(refusal: Callable[..., str]) -> None:
    told = refusal("string_exact: 1, reasoning_format: 1}", "strong_exact: 1}", "--set", "datasets.sums.gates=[shrt]")
    assert [line.strip().split(": ")[:2] for line in told.splitlines()[1:]] == [
        ["run.yaml:9", "datasets.words.graders.strong_exact"],
        ["--set datasets.sums.gates=[shrt]", "datasets.sums.gates.0"],
    ]


def test_all_faults_of_the_stages_are_told_at_once(refusal: Callable[..., str]) -> None:
    assert refusal("mix: {sums: 1, words: 2}", "mix: {sums: 1, wrods: 2}").splitlines() == [
        "run.yaml has 2 problems:",
        "  run.yaml:13: stages: stage 'main': there is no data set 'wrods'; known: sums, words",
        "  run.yaml:21: stages.1.grading.words: the stage draws nothing from 'words'; add it to the mix, or remove "
        "this",
    ]


def test_a_data_set_that_no_stage_uses_is_told(refusal: Callable[..., str]) -> None:
    told = refusal("", "", "--set", "stages.1.mix={sums: 1}", "--set", "stages.1.grading={}")
    place, key, reason = told.split(": ", maxsplit=2)
    assert (place, key) == ("run.yaml:13", "stages")
    assert reason == "no stage uses words; add it to a stage's mix or remove it from datasets"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data_root=nowhere", "data_root {folder}/nowhere is not a folder; set it to the folder with the data"),
        ("data_root=run.yaml", "data_root {folder}/run.yaml is not a folder; set it to the folder with the data"),
        ("datasets.sums.path=none.jsonl", "datasets.sums: no such file: {folder}/none.jsonl"),
        (
            "datasets.sums.path=run.yaml",
            "datasets.sums: {folder}/run.yaml: cannot tell the format from the name; supported: .jsonl, .ndjson, "
            ".json, .csv, .tsv (also with .gz) and .parquet",
        ),
    ],
)
def test_data_that_are_not_there_are_told(
    override: str, message: str, folder: Path, refusal: Callable[..., str]
) -> None:
    assert refusal("", "", "--set", override) == message.format(folder=folder)


def test_a_link_that_leads_out_of_the_data_root_is_refused(folder: Path, refusal: Callable[..., str]) -> None:
    inside = folder / "inside"
    inside.mkdir()
    (inside / "sums.jsonl").symlink_to(folder / "sums.jsonl")
    (inside / "words.jsonl").symlink_to(os.devnull)
    assert refusal("", "data_root: inside\n").splitlines() == [
        f"datasets.sums: {inside}/sums.jsonl points to {folder}/sums.jsonl, outside data_root {inside}; "
        "data are read only from inside it",
        f"datasets.words: {inside}/words.jsonl points to /dev/null, outside data_root {inside}; data are read only "
        "from inside it",
    ]


def test_rows_that_all_ask_the_same_cannot_be_held_out(folder: Path, refusal: Callable[..., str]) -> None:
    for name in ("sums", "words"):
        write_rows(folder / f"{name}.jsonl", [{"prompt": "1 + 1?", "answer": "2"}] * 5)
    overrides = [f"datasets.{name}.validation_fraction=0.2" for name in ("sums", "words")]
    told = refusal("", "", "--set", overrides[0], "--set", overrides[1]).splitlines()
    assert told == [
        f"datasets.{name}.validation_fraction: all 5 rows have the same prompt, so none can be held out; remove this "
        "option"
        for name in ("sums", "words")
    ]


def test_a_task_of_reasoning_gym_that_is_not_there_is_told(refusal: Callable[..., str]) -> None:
    message = refusal("    path: sums.jsonl\n", "    type: reasoning_gym\n    task: leg_countin\n")
    assert message == "datasets.sums: reasoning-gym has no data set 'leg_countin'; did you mean 'leg_counting'?"


def test_a_config_that_is_not_there_is_told(folder: Path) -> None:
    result = CliRunner().invoke(main, ["none.yaml"])
    assert result.exit_code == 2
    assert the_one_error(result.stderr, result.stdout).startswith("none.yaml: there is no such file; check the path")
