"""Preparing a file as tokenised rows: which records are kept, cut, dropped or refused.

The tiny tokenizer encodes `z` and `Q` as one token each, and `user\\n` and `assistant\\n` as two. A row of n `z` and
m `Q` therefore has n + 5 tokens for the user (<|im_start|>, user, newline, n, <|im_end|>, newline) and m + 5 for the
assistant, whose m letters and <|im_end|> are trained.
"""

import pytest

from posttrain.config.sections.datasets import ColumnsConfig
from posttrain.data.tokenized import TokenizedDataset
from posttrain.errors import DataError


def row(z: int, q: int, **more: object) -> dict[str, object]:
    return {"prompt": "z" * z, "completion": "Q" * q, **more}


# 15, 24 and 31 tokens; 4, 5 and 21 of them trained.
THREE = [row(2, 3), row(10, 4), row(1, 20)]


def counted(data: TokenizedDataset) -> dict[str, object]:
    """The ledger's nonzero counts, and its weights if any is not 1."""
    found = data.ledger.as_dict().items()
    return {key: value for key, value in found if value and value != [1.0, 1.0] and key != "name"}


def test_rows_that_fit_are_counted_in_the_ledger(prepare):
    data = prepare(THREE)
    assert data.lengths().tolist() == [15, 24, 31]
    assert data.trained_counts().tolist() == [4, 5, 21]
    assert counted(data) == {
        "records": 3,
        "rows": 3,
        "tokens": 70,
        "trained_tokens": 30,
        "longest": 31,
        "answers": 3,
        "answers_with_end": 3,
    }
    assert data.ledger.trained_share == 30 / 70
    assert data.ledger.end_share == 1.0


def test_what_is_trained_is_the_answer_and_its_end_token(prepare, tiny_tokenizer):
    ids, trained = prepare([row(2, 3)]).row(0)
    assert tiny_tokenizer.decode(ids) == "<|im_start|>user\nzz<|im_end|>\n<|im_start|>assistant\nQQQ<|im_end|>\n"
    assert tiny_tokenizer.decode(ids[trained]) == "QQQ<|im_end|>"


def test_rows_that_are_too_long_are_dropped_and_counted(prepare):
    data = prepare(THREE, max_length=24, truncation="drop")
    assert data.lines.tolist() == [1, 2]
    assert counted(data) == {
        "records": 3,
        "dropped": {"too long": 1},
        "rows": 2,
        "tokens": 39,
        "trained_tokens": 9,
        "longest": 24,
        "answers": 2,
        "answers_with_end": 2,
    }


def test_a_cut_on_the_right_takes_the_end_of_an_answer_and_says_so(prepare):
    # The third row's answer begins at its 10th token, so 15 of the 24 kept tokens belong to it.
    data = prepare(THREE, max_length=24, truncation="right", min_end_tokens_kept=0.5)
    assert data.trained_counts().tolist() == [4, 5, 15]
    assert counted(data) == {
        "records": 3,
        "cut_right": 1,
        "rows": 3,
        "tokens": 63,
        "trained_tokens": 24,
        "longest": 24,
        "answers": 3,
        "answers_with_end": 2,
    }


def test_a_cut_on_the_right_that_takes_only_the_last_newline_keeps_the_answer(prepare):
    data = prepare(THREE[:2], max_length=23, truncation="right")
    assert counted(data) == {
        "records": 2,
        "cut_right": 1,
        "rows": 2,
        "tokens": 15 + 23,
        "trained_tokens": 9,
        "longest": 23,
        "answers": 2,
        "answers_with_end": 2,
    }


def test_a_cut_on_the_left_keeps_the_end_of_the_answer(prepare):
    data = prepare(THREE, max_length=24, truncation="left")
    assert data.trained_counts().tolist() == [4, 5, 21]
    assert (data.ledger.cut_left, data.ledger.cut_right) == (1, 0)
    assert (data.ledger.answers, data.ledger.answers_with_end) == (3, 3)


def test_the_first_token_of_a_row_that_starts_within_an_answer_is_not_counted_as_trained(prepare):
    # 19 of the 20 tokens are the answer and its end token; nothing predicts the first of them.
    data = prepare([row(1, 20)], max_length=20, truncation="left")
    ids, trained = data.row(0)
    assert len(ids) == 20
    assert trained.tolist() == [False, *[True] * 18, False]
    assert data.ledger.trained_tokens == data.sizes().trained_counts[0] == 18


def test_a_row_of_which_only_its_first_token_would_be_trained_is_dropped(prepare):
    # The last 8 tokens are the answer's end token, a newline, and the 6 tokens of the one-letter user turn.
    turns = [("user", "z"), ("assistant", "Q"), ("user", "z")]
    rows = [{"messages": [{"role": role, "content": text} for role, text in turns]}, row(1, 1)]
    data = prepare(rows, max_length=8, truncation="left")
    assert data.ledger.dropped == {"nothing to train": 1}
    assert data.lines.tolist() == [2]


def test_a_prompt_that_fills_the_whole_length_leaves_nothing_to_train(prepare):
    data = prepare([row(2, 3), row(30, 3)], max_length=20, truncation="right")
    assert data.ledger.dropped == {"nothing to train": 1}
    assert (data.ledger.cut_right, data.ledger.rows) == (0, 1)


def test_under_truncation_error_the_line_of_the_long_row_is_named(prepare):
    with pytest.raises(DataError, match=r"datasets\.d: line 3: a conversation has 31 tokens, the limit is 30"):
        prepare(THREE, max_length=30, truncation="error")


def test_data_without_a_trained_token_are_refused(prepare):
    with pytest.raises(DataError, match=r"datasets\.d: no trained tokens remain from 3 rows \(3 too long\)"):
        prepare(THREE, max_length=8, truncation="drop")


def test_data_whose_answers_lost_their_ends_are_refused(prepare):
    with pytest.raises(DataError, match=r"only 66\.7% of the answers keep their end token .* = 90%"):
        prepare(THREE, max_length=24, truncation="right")


def test_the_same_data_are_refused_from_the_cache_too(prepare):
    for _ in range(2):
        with pytest.raises(DataError, match="keep their end token"):
            prepare(THREE, max_length=24, truncation="right")


def test_a_bad_record_stops_the_run_or_is_skipped_and_counted(prepare):
    rows = [row(2, 3), {"prompt": "no answer"}, row(10, 4)]
    with pytest.raises(DataError, match=r"rows\.jsonl:2"):
        prepare(rows)
    data = prepare(rows, on_bad_record="skip")
    assert (data.ledger.records, data.ledger.bad, data.ledger.rows) == (3, 1, 2)
    assert data.lines.tolist() == [1, 3]
    assert "rows.jsonl:2" in data.ledger.faults[0]


def test_a_turn_with_train_false_is_not_trained(prepare, tiny_tokenizer):
    messages = [
        {"role": "user", "content": "z"},
        {"role": "assistant", "content": "QQ", "train": False},
        {"role": "user", "content": "z"},
        {"role": "assistant", "content": "QQQ"},
    ]
    data = prepare([{"messages": messages}])
    ids, trained = data.row(0)
    assert tiny_tokenizer.decode(ids[trained]) == "QQQ<|im_end|>"
    assert data.ledger.answers == 1


def test_only_the_last_answer_is_trained_where_the_config_says_so(prepare):
    turns = [("user", "z"), ("assistant", "QQ"), ("user", "z"), ("assistant", "QQQ")]
    messages = [{"role": role, "content": text} for role, text in turns]
    assert prepare([{"messages": messages}]).trained_counts().tolist() == [3 + 4]
    assert prepare([{"messages": messages}], train_on="last").trained_counts().tolist() == [4]


def test_the_weight_column_is_the_factor_on_the_rows_loss(prepare):
    data = prepare([row(1, 1, weight=0.25), row(1, 2), row(1, 3, weight=2)])
    assert data.weights.tolist() == [0.25, 1.0, 2.0]


def test_the_weight_column_can_have_another_name(prepare):
    columns = ColumnsConfig(weight="importance")
    assert prepare([row(1, 1, importance=0.5, weight=7)], columns=columns).weights.tolist() == [0.5]


def test_rows_that_do_not_all_weigh_1_are_told_with_their_column_at_every_start(prepare):
    rows = [row(2, 3, weight=0.2), row(10, 4), row(1, 20, weight=3)]
    for _ in range(2):  # the second time, from the cache
        lines: list[str] = []
        assert prepare(rows, lines=lines).ledger.weights == pytest.approx([0.2, 3.0])
        assert lines[-1] == "d: weights 0.2-3 from column weight"
    # No line about weights if all rows have the same one or the column is ignored.
    for same, columns in ((THREE, None), (rows, ColumnsConfig(weight=None))):
        lines = []
        prepare(same, lines=lines, columns=columns)
        assert not any("weights" in line for line in lines)


def test_a_row_that_the_chat_template_refuses_is_named_by_its_line(prepare):
    template = (
        "{% for m in messages %}{% if m.content == 'QQQQ' %}{{ raise_exception('no') }}{% endif %}"
        "{{ m.role }}: {{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )
    with pytest.raises(DataError, match=r"^datasets\.d: line 2: the chat template rejects the conversation: no$"):
        prepare(THREE, template=template)
