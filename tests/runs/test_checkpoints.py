"""Publishing, finding, checking and rotating checkpoints."""

import pytest

from posttrain.errors import ConfigError
from posttrain.runs.checkpoints import (
    Damaged,
    best_checkpoint,
    complete_checkpoints,
    discard_unfinished,
    file_faults,
    find_checkpoint,
    latest_checkpoint,
    mark_best,
    newest_sound_checkpoint,
    publish,
    record_files,
    rotate,
)
from posttrain.runs.directory import RunDirectory


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    return RunDirectory(tmp_path / "run")


def written(run, step: int, weights: str = "weights"):
    """Write a checkpoint to the trainer's private folder, as the trainer does."""
    private = run.trainer_private / f"checkpoint-{step}"
    (private / "deeper").mkdir(parents=True)
    (private / "model.safetensors").write_text(weights)
    (private / "deeper" / "shard.pt").write_text("moments of a part")
    (private / "optimizer.pt").write_text("moments")


def published(run, *steps: int) -> list:
    for step in steps:
        written(run, step)
    return [publish(run, step, {"counters": {"step": step}}) for step in steps]


def names(run) -> list[str]:
    return sorted(path.name for path in run.path.glob("checkpoint-*"))


def test_a_published_checkpoint_is_whole_and_the_latest(run):
    checkpoint = published(run, 5)[0]
    assert checkpoint.path == run.path / "checkpoint-5"
    assert (checkpoint.path / "model.safetensors").read_text() == "weights"
    assert (checkpoint.path / "deeper" / "shard.pt").read_text() == "moments of a part"
    assert (run.path / "latest").read_text() == "checkpoint-5"
    assert list(run.trainer_private.iterdir()) == []
    assert complete_checkpoints(run) == [checkpoint]


def test_the_toolkits_own_state_comes_back_as_it_was(run):
    published(run, 5)
    found = latest_checkpoint(run)
    assert found is not None
    assert (found.step, found.state) == (5, {"counters": {"step": 5}})


def test_without_a_checkpoint_there_is_none(run):
    assert complete_checkpoints(run) == []
    assert latest_checkpoint(run) is None
    assert best_checkpoint(run) is None


def test_checkpoints_are_in_the_order_of_their_steps_and_not_of_their_names(run):
    published(run, 10, 9, 100)
    assert [each.step for each in complete_checkpoints(run)] == [9, 10, 100]
    latest = latest_checkpoint(run)
    assert latest is not None
    assert latest.step == 100


def _lose_a_file(folder):
    (folder / "model.safetensors").unlink()


def _lose_a_deeper_file(folder):
    (folder / "deeper" / "shard.pt").unlink()


def _cut_a_file(folder):
    (folder / "model.safetensors").write_text("weight")


def _lose_the_optimizer(folder):
    (folder / "optimizer.pt").unlink()


def _lose_the_state(folder):
    (folder / "toolkit_state.json").unlink()


def _cut_the_state(folder):
    (folder / "toolkit_state.json").write_text('{"counters": {')


def _forget_the_files(folder):
    (folder / "toolkit_state.json").write_text('{"counters": {"step": 10}}')


def _write_another_state(folder):
    (folder / "toolkit_state.json").write_text("[]")


DAMAGES = [
    _lose_a_file,
    _lose_a_deeper_file,
    _cut_a_file,
    _lose_the_optimizer,
    _lose_the_state,
    _cut_the_state,
    _forget_the_files,
    _write_another_state,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_that_is_not_whole_does_not_count(run, damage):
    published(run, 5, 10)
    damage(run.path / "checkpoint-10")
    assert [each.step for each in complete_checkpoints(run)] == [5]


def test_a_changed_byte_is_found_before_a_run_goes_on_from_it(run):
    # The size is unchanged, so only the digest reveals it.
    first, second = published(run, 5, 10)
    (second.path / "optimizer.pt").write_text("nonsens")
    assert latest_checkpoint(run) == second
    reason = "optimizer.pt is not what was written (its digest differs)"
    assert newest_sound_checkpoint(run) == (first, (Damaged(second.path, reason),))


def test_each_damaged_checkpoint_is_named_with_what_is_wrong_the_newest_first(run):
    _, middle, _ = published(run, 5, 10, 15)
    _lose_the_optimizer(run.path / "checkpoint-15")
    _cut_a_file(run.path / "checkpoint-5")
    sound, damaged = newest_sound_checkpoint(run)
    assert sound == middle
    assert [(each.path.name, each.reason) for each in damaged] == [
        ("checkpoint-15", "optimizer.pt is missing"),
        ("checkpoint-5", "model.safetensors has 6 bytes instead of 7"),
    ]


def test_what_is_only_called_like_a_checkpoint_does_not_count(run):
    published(run, 5)
    (run.path / "checkpoint-best").mkdir()
    (run.path / "checkpoint-best" / "toolkit_state.json").write_text("{}")
    (run.path / "checkpoint-7").write_text("a file")
    assert [each.step for each in complete_checkpoints(run)] == [5]


def test_the_same_step_published_again_leaves_the_one_that_is_there_already(run):
    first = published(run, 5)[0]
    written(run, 5, weights="others")
    assert publish(run, 5, {}) == first
    assert (run.path / "checkpoint-5" / "model.safetensors").read_text() == "weights"
    assert list(run.trainer_private.iterdir()) == []


def test_a_damaged_one_of_the_same_step_is_replaced(run):
    published(run, 5)
    _cut_a_file(run.path / "checkpoint-5")
    written(run, 5, weights="others")
    publish(run, 5, {})
    assert (run.path / "checkpoint-5" / "model.safetensors").read_text() == "others"
    assert names(run) == ["checkpoint-5"]
    assert list(run.trainer_private.iterdir()) == []


@pytest.mark.parametrize(("keep", "kept"), [(1, [20]), (2, [15, 20]), (3, [10, 15, 20]), (9, [5, 10, 15, 20])])
def test_rotation_keeps_the_newest(run, keep, kept):
    published(run, 5, 10, 15, 20)
    rotate(run, keep)
    assert [each.step for each in complete_checkpoints(run)] == kept


def test_rotation_keeps_the_best_besides(run):
    first, *_ = published(run, 5, 10, 15)
    mark_best(run, first)
    rotate(run, 1)
    assert [each.step for each in complete_checkpoints(run)] == [5, 15]
    assert best_checkpoint(run) == first.path


def test_the_best_moves_on_and_the_one_before_may_go(run):
    first, second, _ = published(run, 5, 10, 15)
    mark_best(run, first)
    mark_best(run, second)
    rotate(run, 1)
    assert [each.step for each in complete_checkpoints(run)] == [10, 15]


def test_rotation_does_not_count_what_is_not_whole(run):
    published(run, 5, 10, 15)
    _cut_a_file(run.path / "checkpoint-15")
    rotate(run, 1)
    assert names(run) == ["checkpoint-10", "checkpoint-15"]


def test_a_best_that_is_gone_is_none(run):
    checkpoint = published(run, 5)[0]
    mark_best(run, checkpoint)
    (run.path / "best").write_text("checkpoint-99\n")
    assert best_checkpoint(run) is None
    mark_best(run, checkpoint)
    _cut_a_file(checkpoint.path)
    assert best_checkpoint(run) is None


def test_what_a_killed_run_left_half_written_is_removed(run):
    published(run, 5)
    written(run, 10)
    (run.path / ".metrics.jsonl.0123.tmp").write_text("half")
    discard_unfinished(run, 5)
    assert sorted(path.name for path in run.path.iterdir()) == ["checkpoint-5", "latest"]


def test_damaged_checkpoints_are_set_aside_and_not_removed(run):
    published(run, 5, 10, 15)
    _cut_a_file(run.path / "checkpoint-5")
    (run.path / "checkpoint-15" / "optimizer.pt").write_text("nonsens")
    discard_unfinished(run, 10)
    assert names(run) == ["checkpoint-10"]
    kept = run.path / "damaged-checkpoint-15"
    assert (kept / "model.safetensors").read_text() == "weights"
    assert (run.path / "damaged-checkpoint-5").is_dir()
    # The checkpoint is damaged again after these steps were trained again.
    published(run, 15)
    _cut_a_file(run.path / "checkpoint-15")
    discard_unfinished(run, 10)
    assert (kept / "model.safetensors").read_text() == "weight"


def test_pointers_never_name_what_was_removed(run):
    _, second = published(run, 5, 10)
    mark_best(run, second)
    _cut_a_file(second.path)
    discard_unfinished(run, 5)
    assert (run.path / "latest").read_text() == "checkpoint-5"
    assert not (run.path / "best").exists()


def test_a_best_that_is_still_there_stays_marked(run):
    first, _ = published(run, 5, 10)
    mark_best(run, first)
    discard_unfinished(run, 10)
    assert best_checkpoint(run) == first.path


def test_a_checkpoint_is_found_by_its_step_or_as_the_latest(run):
    published(run, 5, 10)
    assert find_checkpoint(run, "5").step == 5
    assert find_checkpoint(run, "latest").step == 10


def test_a_step_without_a_checkpoint_lists_those_that_are_there(run):
    with pytest.raises(ConfigError, match="there is no complete checkpoint in"):
        find_checkpoint(run, "latest")
    published(run, 5, 10)
    _cut_a_file(run.path / "checkpoint-10")
    with pytest.raises(ConfigError, match=r"--checkpoint 10: no checkpoint at that step; available: 5$"):
        find_checkpoint(run, "10")


def test_one_whose_bytes_changed_is_not_handed_out(run):
    published(run, 5, 10)
    (run.path / "checkpoint-10" / "model.safetensors").write_text("WEIGHTS")
    with pytest.raises(ConfigError, match=r"checkpoint-10 is damaged: model\.safetensors .*; other .*steps: 5$"):
        find_checkpoint(run, "latest")
    assert find_checkpoint(run, "5").step == 5


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deeper").mkdir()
    (tmp_path / "weights").write_text("abc")
    (tmp_path / "deeper" / "state").write_text("")
    return tmp_path


def test_each_file_is_recorded_by_its_path_with_size_and_digest(folder):
    recorded = record_files(folder)
    assert {name: facts["bytes"] for name, facts in recorded.items()} == {"weights": 3, "deeper/state": 0}
    # `b2sum -l 128` of "abc"
    assert recorded["weights"]["blake2b"] == "cf4ab791c62b8d2b2109c90275287816"


def test_files_that_are_as_they_were_have_no_fault_and_others_do_not_matter(folder):
    recorded = record_files(folder)
    (folder / "added").write_text("later")
    assert list(file_faults(folder, recorded, contents=True)) == []


def test_each_fault_is_told_with_its_file(folder):
    recorded = record_files(folder)
    (folder / "weights").write_text("abcd")
    (folder / "deeper" / "state").unlink()
    assert sorted(file_faults(folder, recorded, contents=False)) == [
        "deeper/state is missing",
        "weights has 4 bytes instead of 3",
    ]


def test_contents_are_compared_only_when_asked_for(folder):
    recorded = record_files(folder)
    (folder / "weights").write_text("abd")
    assert list(file_faults(folder, recorded, contents=False)) == []
    assert list(file_faults(folder, recorded, contents=True)) == [
        "weights is not what was written (its digest differs)"
    ]


def test_a_file_that_cannot_be_read_is_named_itself(folder):
    recorded = record_files(folder)
    # Nobody can read the first page of /proc/self/mem.
    (folder / "weights").unlink()
    (folder / "weights").symlink_to("/proc/self/mem")
    unread = {"weights": {**recorded["weights"], "bytes": (folder / "weights").stat().st_size}}
    assert list(file_faults(folder, unread, contents=True)) == ["weights cannot be read: Input/output error"]
