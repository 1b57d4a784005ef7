"""Where a run resumes, and when a resume is refused because it would not be the same run."""

import json
import shutil
import subprocess
import sys

import pytest

from cli.refusals import contents
from posttrain.data.curriculum.curriculum import Curriculum, Stage
from posttrain.data.curriculum.micro_batches import MicroBatchSize
from posttrain.data.curriculum.order_hash import order_hash_after
from posttrain.data.curriculum.step_plan import RowSizes, StepPlanner
from posttrain.errors import ConfigError
from posttrain.runs.checkpoints import STATE_FILE, Damaged, publish
from posttrain.runs.directory import RunDirectory, clear_run_directory
from posttrain.runs.manifest import describe_run
from posttrain.runs.metrics import append_metrics, read_metrics
from posttrain.runs.resume import ResumePoint, RunCounters, find_resume_point, prepare_run_directory

IDENTITY = {"training": {"seed": 0, "rows_per_step": 2}, "datasets": {"a": "digest a", "b": "digest b"}}
STAGES = [Stage("one", 4, {"a": 1}), Stage("two", 8, {"a": 1, "b": 1})]
SIZES = {"a": 7, "b": 5}
BEGINNING = ResumePoint(None, RunCounters())


def curriculum(stages=STAGES, sizes=SIZES, seed: int = 0) -> Curriculum:
    return Curriculum(stages, sizes, rows_per_step=2, seed=seed)


def counters_after(steps: int) -> RunCounters:
    rows = {name: RowSizes([10] * size, [5] * size, [1.0] * size) for name, size in SIZES.items()}
    planner, counters = StepPlanner(curriculum(), rows, MicroBatchSize(1)), RunCounters()
    for step in range(steps):
        counters.advance(planner.plan(step), 0.5)
    return counters


@pytest.fixture
def run(tmp_path):
    """A run that was killed at step 7, with checkpoints at steps 3 and 6."""
    directory = RunDirectory(tmp_path / "run")
    clear_run_directory(directory)
    directory.write_json(directory.manifest, describe_run(IDENTITY, "toolkit-sft"))
    for step in range(1, 8):
        append_metrics(directory.metrics, {"step": step, "loss": 1.0, "order_hash": "0" * 16})
    for step in (3, 6):
        private = directory.trainer_private / f"checkpoint-{step}"
        private.mkdir(parents=True)
        (private / "model.safetensors").write_text("weights")
        publish(directory, step, {"counters": counters_after(step).as_dict()})
    return directory


def resumed(run, identity=IDENTITY, **changed) -> ResumePoint:
    return find_resume_point(run, identity, curriculum(**changed), resume=True)


def as_before_the_first_checkpoint(run) -> None:
    for step in (3, 6):
        shutil.rmtree(run.path / f"checkpoint-{step}")
    (run.path / "latest").unlink()


def test_a_run_goes_on_from_its_newest_whole_checkpoint(run):
    assert resumed(run) == ResumePoint(run.path / "checkpoint-6", counters_after(6))
    (run.path / "checkpoint-6" / "model.safetensors").write_text("weigh")
    damaged = Damaged(run.path / "checkpoint-6", "model.safetensors has 5 bytes instead of 7")
    assert resumed(run) == ResumePoint(run.path / "checkpoint-3", counters_after(3), damaged=(damaged,))


def test_a_start_that_is_no_resume_begins_at_the_beginning_whatever_is_there(run):
    assert find_resume_point(run, {"another": "run"}, curriculum(seed=9), resume=False) == BEGINNING


def test_a_resume_of_nothing_begins_at_the_beginning(run, tmp_path):
    assert resumed(RunDirectory(tmp_path / "nowhere")) == BEGINNING
    as_before_the_first_checkpoint(run)
    assert resumed(run) == ResumePoint(None, RunCounters(), starts_again=True)


def test_a_run_whose_checkpoints_are_all_damaged_is_not_begun_again_unasked(run):
    (run.path / "checkpoint-3" / "toolkit_state.json").unlink()
    (run.path / "checkpoint-6" / "model.safetensors").unlink()
    with pytest.raises(ConfigError) as refused:
        resumed(run)
    assert str(refused.value) == (
        f"every checkpoint in {run.path} is damaged, so there is nothing to resume from:\n"
        "  checkpoint-6: model.safetensors is missing\n"
        "  checkpoint-3: toolkit_state.json is missing or damaged\n"
        "restore the files, start again with --overwrite, or start another run with --run-name"
    )


@pytest.mark.parametrize(
    "name", ["result.json", "adapter_model.safetensors", "merged", "damaged-checkpoint-3", "latest", "best"]
)
def test_what_was_learnt_is_not_removed_by_beginning_again(run, name):
    as_before_the_first_checkpoint(run)
    (run.path / name).mkdir()
    with pytest.raises(ConfigError, match=rf"would remove what was learnt \({name}\); do so with --overwrite"):
        resumed(run)


def test_a_checkpoint_of_another_format_is_not_gone_on_with_and_stays(run):
    state = run.path / "checkpoint-6" / STATE_FILE
    written = json.loads(state.read_text())
    del written["format"]  # as before formats were numbered
    state.write_text(json.dumps(written))
    before = contents(run.path)
    with pytest.raises(
        ConfigError, match=r"checkpoint-6 was written by another version .*format 1, .* format 3.*--run-n"
    ):
        resumed(run)
    assert contents(run.path) == before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"command": "toolkit-sft"}', '{"identity": 3}'])
def test_a_damaged_manifest_is_named(run, text):
    run.manifest.write_text(text)
    with pytest.raises(ConfigError, match=r"manifest\.json is damaged, so the run cannot be identified"):
        resumed(run)


@pytest.mark.parametrize(
    ("identity", "named"),
    [
        ({**IDENTITY, "datasets": {"a": "digest a", "b": "edited"}}, "datasets.b: digest b → edited"),
        ({**IDENTITY, "training": {"seed": 1, "rows_per_step": 2}}, "training.seed: 0 → 1"),
        ({**IDENTITY, "training": {"seed": 0, "rows_per_step": 4}}, "training.rows_per_step: 2 → 4"),
    ],
)
def test_changed_data_seed_or_shape_are_refused_by_name(run, identity, named):
    with pytest.raises(ConfigError, match=named):
        resumed(run, identity)


def test_a_changed_identity_is_refused_even_before_the_first_checkpoint(run):
    for step in (3, 6):
        shutil.rmtree(run.path / f"checkpoint-{step}")
    with pytest.raises(ConfigError, match=r"training\.seed: 0 → 1"):
        resumed(run, {**IDENTITY, "training": {"seed": 1, "rows_per_step": 2}})


@pytest.mark.parametrize(
    "stages",
    [
        [Stage("one", 5, {"a": 1}), STAGES[1]],
        [Stage("one", 4, {"b": 1}), STAGES[1]],
        [STAGES[0], Stage("two", 8, {"a": 1, "b": 2})],
        [Stage("uno", 4, {"a": 1}), STAGES[1]],
    ],
    ids=["a longer first stage", "other data", "another mix of the stage under way", "another name"],
)
def test_stages_that_would_have_drawn_other_rows_so_far_are_refused(run, stages):
    with pytest.raises(ConfigError, match=r"the stages before step 6 changed: .*stages after that step may change"):
        resumed(run, stages=stages)


@pytest.mark.parametrize(
    "stages",
    [
        [STAGES[0], Stage("two", 20, {"a": 1, "b": 1})],
        [STAGES[0], Stage("two", 6, {"a": 1, "b": 1})],
        [STAGES[0], Stage("two", 6, {"a": 1, "b": 1}), Stage("three", 9, {"b": 1})],
    ],
    ids=["a longer last stage", "an end right here", "a new stage"],
)
def test_what_comes_after_the_checkpoint_may_change(run, stages):
    assert resumed(run, stages=stages).counters.step == 6


def test_a_run_that_is_beyond_the_last_stage_is_refused(run):
    with pytest.raises(ConfigError, match="the run is at step 6, beyond the last stage, which ends at 5"):
        resumed(run, stages=[STAGES[0], Stage("two", 5, {"a": 1, "b": 1})])


def test_the_folder_is_made_as_it_was_at_the_checkpoint(run):
    run.write_json(run.result, {"max_steps": 7})
    (run.trainer_private / "checkpoint-7").mkdir()
    (run.path / "checkpoint-6" / "model.safetensors").write_text("weigh")
    prepare_run_directory(run, resumed(run))
    assert sorted(path.name for path in run.path.iterdir()) == [
        "checkpoint-3",
        "damaged-checkpoint-6",
        "latest",
        "manifest.json",
        "metrics.jsonl",
    ]
    assert [row["step"] for row in read_metrics(run.metrics)] == [1, 2, 3]


def test_damaged_lines_of_the_metrics_cost_no_others_and_are_told(run, capsys):
    lines = run.metrics.read_bytes().splitlines(keepends=True)
    damaged = b"".join([lines[0], b"{\xff}\n", b"7\n", *lines[3:]])
    run.metrics.write_bytes(damaged)
    prepare_run_directory(run, resumed(run))
    assert [row["step"] for row in read_metrics(run.metrics)] == [1, 4, 5, 6]
    assert (run.path / "damaged-metrics.jsonl").read_bytes() == damaged
    assert capsys.readouterr().err == (
        "metrics.jsonl is damaged at line 2 and 1 more; the original is kept as damaged-metrics.jsonl\n"
        "metrics.jsonl has no line for step 2 and 1 more, so plots and warnings are incomplete\n"
    )


def test_lines_that_are_gone_are_told(run, capsys):
    run.metrics.unlink()
    prepare_run_directory(run, resumed(run))
    assert "metrics.jsonl has no line for step 1 and 5 more" in capsys.readouterr().err


def test_a_folder_in_which_something_is_being_written_is_not_cleared(run):
    other = "import sys; from pathlib import Path; from posttrain.base.locks import own_output\n"
    hold = "with own_output(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()"
    command = [sys.executable, "-c", other + hold, run.path / "merged"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match=rf"cannot be replaced: merged in it is being .* process {holder.pid} "):
            prepare_run_directory(run, BEGINNING)
        assert (run.path / "checkpoint-6").is_dir()
        holder.communicate()


def test_a_start_from_the_beginning_empties_the_folder(run):
    prepare_run_directory(run, BEGINNING)
    assert list(run.path.iterdir()) == []


LENGTHS = RowSizes(lengths=[10, 20, 30], trained_counts=[1, 2, 3], weights=[1.0, 1.0, 1.0])
CURRICULUM = Curriculum([Stage("only", 4, {"a": 1})], {"a": 3}, rows_per_step=3, seed=0)
PLANNER = StepPlanner(CURRICULUM, {"a": LENGTHS}, MicroBatchSize(1))


def test_each_step_adds_its_rows_tokens_and_seconds():
    # Each step draws all three rows once: 60 tokens, 6 of them trained.
    counters = RunCounters()
    counters.advance(PLANNER.plan(0), 0.5)
    counters.advance(PLANNER.plan(1), 0.25)
    assert (counters.step, counters.rows, counters.tokens, counters.trained_tokens) == (2, 6, 120, 12)
    assert counters.seconds == 0.75


def test_the_order_hash_is_the_one_that_the_curriculum_gives_for_as_many_steps():
    counters = RunCounters()
    for step in range(4):
        assert counters.order_hash == order_hash_after(CURRICULUM, step)
        counters.advance(PLANNER.plan(step), 1.0)
    assert counters.order_hash == order_hash_after(CURRICULUM, 4)


def test_counters_from_a_checkpoint_go_on_as_if_nothing_had_been():
    straight, resumed = RunCounters(), RunCounters()
    for step in range(4):
        straight.advance(PLANNER.plan(step), 0.1)
        resumed = RunCounters(**json.loads(json.dumps(resumed.as_dict())))
        resumed.advance(PLANNER.plan(step), 0.1)
    assert resumed == straight
