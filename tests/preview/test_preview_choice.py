"""Which rows are shown, and the curriculum's timeline."""

from pathlib import Path

import pytest

from posttrain.errors import ConfigError, DataError
from posttrain.preview.preview import Preview, Request, gather
from posttrain.preview.rows import Shown

# Rows 1 to 5. The tiny tokenizer spells digits one by one.
ROWS = [{"prompt": f"row {n}", "completion": "9" * n} for n in (3, 30, 1, 60, 5)]


def by_reason(preview: Preview) -> dict[str, Shown]:
    return {reason.partition(":")[0]: row for row in preview.rows for reason in row.why.split("; ")}


def test_the_longest_the_most_cut_and_the_least_trained_rows_are_shown(write_sft) -> None:
    config = write_sft(ROWS, chat={"max_length": 40, "truncation": "right", "min_end_tokens_kept": 0})
    found = by_reason(gather(config, Request()))
    assert found["least trained"].place == "train: train.jsonl:3"  # its answer is one digit
    assert found["most cut"].place == "train: train.jsonl:4"
    assert found["longest"].place == "train: train.jsonl:2"  # of the two that are cut to 40 tokens, the first
    cut = sum(token.tone == "cut" for token in found["most cut"].sides[0].tokens)
    assert f"most cut: {cut} tokens" in found["most cut"].why
    assert cut > 10


def test_no_row_is_called_cut_where_nothing_is_cut(write_sft) -> None:
    assert "most cut" not in by_reason(gather(write_sft(ROWS), Request()))


def test_worst_rows_are_as_many_as_asked_for(write_sft) -> None:
    reasons = [reason for row in gather(write_sft(ROWS), Request(worst=3)).rows for reason in row.why.split("; ")]
    assert sum(reason.startswith("longest") for reason in reasons) == 3
    assert sum(reason.startswith("least trained") for reason in reasons) == 3


def test_each_data_set_shows_the_first_row_that_is_drawn(write_sft) -> None:
    preview = gather(write_sft(ROWS, ROWS), Request(worst=0))
    first = {row.why: row.place for row in preview.rows}
    drawn = preview.first_rows[0]
    assert (drawn.step, drawn.stage, drawn.epoch) == (1, "one", 1)
    assert first["first of train, in step 1"] == f"train: train.jsonl:{drawn.place.removeprefix('train:')}"
    assert any(why.startswith("first of other, in step 3") for why in first)


def test_a_stage_shows_only_its_rows(write_sft) -> None:
    preview = gather(write_sft(ROWS, ROWS), Request(stage="two"))
    assert {row.stage for row in preview.first_rows} == {"two"}
    only_first = gather(write_sft(ROWS, ROWS), Request(stage="one"))
    assert {row.place.partition(":")[0] for row in only_first.rows} == {"train"}


def test_a_stage_that_does_not_exist_is_refused_with_those_that_do(write_sft) -> None:
    with pytest.raises(ConfigError, match=r"--stage three: .*one, two"):
        gather(write_sft(ROWS, ROWS), Request(stage="three"))


def test_the_timeline_counts_rows_and_epochs(write_sft) -> None:
    # Two steps of 4 rows from 5 rows, then two steps with a quarter from them and three quarters from 5 others.
    spans = gather(write_sft(ROWS, ROWS), Request()).spans
    told = [
        (s.stage, s.first, s.last, p.dataset, p.rows, p.epochs_before, p.epochs_after) for s in spans for p in s.parts
    ]
    assert told == [
        ("one", 1, 2, "train", 8, 0.0, 1.6),
        ("two", 3, 4, "train", 2, 1.6, 2.0),
        ("two", 3, 4, "other", 6, 0.0, 1.2),
    ]


def test_the_timeline_ends_where_training_ends(write_sft) -> None:
    config = write_sft(ROWS, ROWS, training={"rows_per_step": 4, "micro_batch_size": 2, "max_steps": 3})
    spans = gather(config, Request()).spans
    assert [(span.first, span.last) for span in spans] == [(1, 2), (3, 3)]
    assert sum(part.rows for part in spans[-1].parts) == 4


@pytest.mark.parametrize("named", ["train.jsonl:4", "train:4"])
def test_a_row_is_found_by_its_file_or_its_data_set(write_sft, named: str) -> None:
    (row,) = gather(write_sft(ROWS), Request(row=named)).rows
    assert row.place == "train: train.jsonl:4"


def test_a_row_that_is_too_long_is_shown_with_the_reason(write_sft) -> None:
    config = write_sft(ROWS, chat={"max_length": 40})
    (row,) = gather(config, Request(row="train.jsonl:4")).rows
    assert row.facts[0] == "not trained: too long"
    assert {token.tone for token in row.sides[0].tokens} == {"cut"}


def test_a_row_that_is_held_out_is_shown_as_such(write_sft) -> None:
    config = write_sft(ROWS, validation={"fraction": 0.2, "every": 2})
    shown = [gather(config, Request(row=f"train.jsonl:{line}")).rows[0] for line in range(1, 6)]
    assert sum("held out" in "".join(row.facts) for row in shown) == 1


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("train.jsonl", "FILE:LINE"),
        ("train.jsonl:x", "FILE:LINE"),
        ("train.jsonl:9", "no such record"),
        ("elsewhere.jsonl:1", r"train \(train.jsonl\)"),
    ],
)
def test_a_row_that_does_not_exist_is_refused(write_sft, row: str, problem: str) -> None:
    with pytest.raises((ConfigError, DataError), match=problem):
        gather(write_sft(ROWS), Request(row=row))


PAIRS = [
    {"prompt": "Say one", "chosen": "one", "rejected": "two three four"},
    {"prompt": "same", "chosen": "x", "rejected": "x"},
    {"prompt": "Say " + "9" * 60, "chosen": "1", "rejected": "2"},
]


def test_pairs_share_their_prompt_and_stand_side_by_side(write_dpo) -> None:
    preview = gather(write_dpo(PAIRS), Request(row="pairs.jsonl:1"))
    (row,) = preview.rows
    assert row.prompt is not None
    assert [side.name for side in row.sides] == ["chosen", "rejected"]
    assert "".join(token.text for token in row.prompt.tokens).endswith("<|im_start|>assistant\n")
    assert ["".join(token.text for token in side.tokens) for side in row.sides] == [
        "one<|im_end|>\n",
        "two three four<|im_end|>\n",
    ]
    assert {token.tone for token in row.prompt.tokens} == {"context"}


def test_pairs_that_are_left_out_say_why(write_dpo) -> None:
    config = write_dpo(PAIRS, chat={"max_length": 40}, max_dropped_share=1)
    (row,) = gather(config, Request(row="pairs.jsonl:3")).rows
    assert "prompt too long" in row.facts[0]
    with pytest.raises(DataError, match="same"):
        gather(config, Request(row="pairs.jsonl:2"))


def test_labelled_answers_are_shown_one_by_one(write_dpo) -> None:
    rows = [{"prompt": "p", "completion": "yes", "label": True}, {"prompt": "q", "completion": "no", "label": False}]
    config = write_dpo(rows, method={"type": "kto"}, datasets={"pairs": {"path": "pairs.jsonl", "type": "labelled"}})
    names = {line: gather(config, Request(row=f"pairs:{line}")).rows[0].sides[0].name for line in (1, 2)}
    assert names == {1: "chosen", 2: "rejected"}


def test_the_kind_of_a_config_follows_from_its_keys_or_its_rows(write_dpo, write_sft, tmp_path: Path) -> None:
    from posttrain.data.config_kind import config_kind

    assert config_kind(write_dpo(PAIRS)) == "dpo"  # only its rows tell
    assert config_kind(write_dpo(ROWS, method={"type": "dpo"})) == "dpo"
    assert config_kind(write_sft(ROWS)) == "sft"
    (tmp_path / "rl.yaml").write_text("model: {name: x}\ndataserver: {url: http://h}\n")
    (tmp_path / "data.yaml").write_text("prompts_per_iteration: 8\n")
    assert config_kind(tmp_path / "rl.yaml") == "rl"
    assert config_kind(tmp_path / "data.yaml") == "dataserver"
