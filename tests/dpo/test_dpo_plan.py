"""`toolkit-dpo --dry-run` prints the plan, exits with code 2 for every refusal, and writes nothing."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from base_install import base_python
from posttrain.cli.dpo import main

CONFIG = """\
model: {name: tiny, backend: hf}
chat: {max_length: 64}
datasets:
  pairs: {path: pairs.jsonl}
stages:
  - name: main
    epochs: 2
    mix: {pairs: 1}
training: {rows_per_step: 4, micro_batch_size: 2, learning_rate: 1e-3}
"""


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: run.yaml with the config above, 10 pairs (one with identical answers), and the model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POSTTRAIN_TOOLKIT_CACHE", str(tmp_path.parent / f"{tmp_path.name}-cache"))
    (tmp_path / "run.yaml").write_text(CONFIG)
    (tmp_path / "tiny").symlink_to(tiny_model)
    rows = [{"prompt": f"{n}?", "chosen": f"it is {n}", "rejected": "it is 9"} for n in range(10)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "good.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (tmp_path / "bad.jsonl").write_text('{"prompt": "c", "completion": "d"}\n')
    return tmp_path


@pytest.fixture
def dry_run(folder: Path) -> Callable[..., Result]:
    def run(*overrides: str) -> Result:
        before = sorted(path.name for path in folder.iterdir())
        sets = [part for override in overrides for part in ("--set", override)]
        result = CliRunner().invoke(main, ["run.yaml", "--dry-run", *sets], env={"COLUMNS": "160"})
        assert sorted(path.name for path in folder.iterdir()) == before
        assert result.stdout == ""
        return result

    return run


def test_the_plan_tells_pairs_method_reference_and_steps(dry_run, folder: Path):
    result = dry_run()
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stderr.splitlines()]
    assert ["pairs", "10", "0", "1", "identical", "answers", "0", "9"] in [row[:8] for row in rows]
    # 2 × 9 pairs are 4.5 steps of 4, rounded up to 5: 20 pairs.
    assert ["main", "1–5", "pairs", "20", "100.0%", "2.22"] in rows
    assert f"run directory   {folder}/runs/run\n" in result.stderr
    assert "(folder), LoRA r=16 on all-linear\n" in result.stderr
    assert "method          dpo (beta 0.1, label_smoothing 0)\n" in result.stderr
    assert "reference       the model at the start of training, computed once and cached\n" in result.stderr
    # All 9 pairs are drawn.
    assert "                scored before the first step: 18 rows for the 9 drawn pairs\n" in result.stderr
    assert "4 pairs: 2 at once × 1 process × 2 micro-batches\n" in result.stderr
    assert "steps           5, learning rate 0.001 cosine after 0 warm-up steps\n" in result.stderr
    assert result.stderr.endswith("nothing was trained (--dry-run)\n")


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            ["method={type: simpo}"],
            "method          simpo (beta 2, gamma 1)\nreference       none: simpo uses no reference",
        ),
        (
            ["method={type: mixture, losses: [{type: dpo}, {type: sft, weight: 0.2}]}"],
            "method          1 × dpo (beta 0.1, label_smoothing 0) + 0.2 × sft\n",
        ),
        (["method={type: kto}"], "4 answers: 2 at once × 1 process × 2 micro-batches\n"),
        (["reference={type: live}"], "reference       the model at the start of training, computed at every step\n"),
        (["reference={type: model, name: tiny}"], "tiny (folder), computed at every step\n"),
        (["training.max_steps=3"], "training.max_steps stops at step 3"),
        (
            ["training.max_steps=1", "validation={fraction: 0.2}"],
            "scored before the first step: 8 rows for the 4 drawn pairs, plus the held-out rows\n",
        ),
        (["lora=null"], "all weights trained\n"),
    ],
)
def test_the_plan_tells_what_an_override_changes(overrides: list[str], line: str, dry_run):
    result = dry_run(*overrides)
    assert result.exit_code == 0, result.output
    assert line in result.stderr


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ([], r"estimate        about .* s per step \(.*\), .* in total plus .* beforehand for the reference, without"),
        (
            ["reference={type: live}"],
            r"estimate        about .* s per step \(.*\), .* in total, without evaluations; .* GiB",
        ),
        (["method={type: kto}"], r"estimate        none: the extra passes of kto .* are not estimated\n"),
    ],
)
def test_the_plan_tells_what_the_run_would_cost(overrides: list[str], line: str, dry_run):
    assert re.search(line, dry_run(*overrides).stderr)


def test_for_kto_epochs_go_through_two_answers_of_each_pair(dry_run):
    rows = [line.split() for line in dry_run("method={type: kto}").stderr.splitlines()]
    assert ["main", "1–9", "pairs", "36", "100.0%", "2.00"] in rows


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["datasets.pairs.path=pears.jsonl"], "datasets.pairs.path: no such file: "),
        (["datasets.pairs={accepted: good.jsonl, rejected: bed.jsonl}"], "did you mean bad.jsonl?"),
        (
            ["datasets.pairs={accepted: good.jsonl, rejected: bad.jsonl}"],
            "good.jsonl:1 and ",
        ),
        (["on_useless_pair=error"], "pairs.jsonl:10: both answers are the same"),
        (["reference={type: model, name: ./nowhere}"], "nowhere"),
        (["model.adapter=tiny"], "has no adapter_config.json, so it is not a LoRA adapter"),
        (["reference={type: model, name: tiny, adapter: tiny}"], "has no adapter_config.json"),
        (["method={type: orpo}", "reference={type: cached}"], "orpo uses no reference"),
        (["training.warmup_steps=5"], "warmup_steps 5 leaves no step of the 5"),
        (["chat.max_length=8"], "no trained tokens remain"),
    ],
)
def test_a_dry_run_refuses_what_the_run_would(overrides: list[str], message: str, dry_run):
    result = dry_run(*overrides)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.stderr
    assert result.stderr.count("error: ") == 1
    assert message in result.stderr


def test_the_base_install_plans_a_run_and_loads_nothing_heavy(folder: Path, tmp_path_factory: pytest.TempPathFactory):
    python = base_python(tmp_path_factory.mktemp("base"))
    code = "from posttrain.cli.dpo import main; main()"
    finished = subprocess.run(
        [python, "-I", "-c", code, "run.yaml", "--dry-run"], capture_output=True, text=True, check=False, cwd=folder
    )
    assert finished.returncode == 0, finished.stderr
    assert "without the [train] extra, pairs are checked and counted but not tokenised" in finished.stderr
    assert ["main", "1–5", "pairs", "20", "100.0%", "2.22"] in [line.split() for line in finished.stderr.splitlines()]


def test_the_schema_can_be_printed():
    result = CliRunner().invoke(main, ["--schema"])
    assert result.exit_code == 0
    assert "PairsDataset" in json.loads(result.stdout)["$defs"]
