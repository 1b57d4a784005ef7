"""From files to tokenised pairs: they render as in SFT, and the ledger says what became of every pair.

The tiny tokenizer encodes `z` and `Q` as one token each, `user\\n` and `assistant\\n` as two each. So a prompt of n `z`
has n + 5 tokens for the user (<|im_start|>, user, newline, n, <|im_end|>, newline) and 3 for the start of the answer;
an answer of m `Q` has m + 2 (<|im_end|>, newline), of which m + 1 are trained.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.datasets import DatasetConfig
from posttrain.conversation.saved_template import chatml_template
from posttrain.data.preparation import prepare_dataset
from posttrain.data.splits import held_out_rows
from posttrain.data.tokenized import TokenizedDataset
from posttrain.dpo.config.data import AnyPreferences, LabelledAnswers, PairColumnsConfig, PairsDataset, TwoFilesDataset
from posttrain.dpo.data import Policies, prepare_preferences
from posttrain.dpo.datasets import LabelledDataset, PairedDataset, PreferenceDataset
from posttrain.errors import DataError

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POSTTRAIN_TOOLKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokenized"


@pytest.fixture
def prepare(cache: Path, tmp_path: Path, write_jsonl, tokenizer) -> Callable[..., Any]:
    """`prepare(rows, **chat)` writes the rows to a file, unless they are None, and prepares them as pairs."""

    def call(
        rows: Rows | None,
        *,
        config: AnyPreferences | None = None,
        lines: list[str] | None = None,
        on_useless_pair: Any = "drop",
        seed: int = 0,
        n_samples: int | None = None,
        max_dropped_share: float = 1.0,
        training_template: str | None = None,
        **chat: Any,
    ) -> PreferenceDataset:
        path = tmp_path / "rows.jsonl"
        if rows is not None:
            write_jsonl(path, rows)
        policies = Policies(ChatConfig(**chat), "error", on_useless_pair, seed, max_dropped_share, training_template)
        report = (lambda line: None) if lines is None else lines.append
        config = config or PairsDataset(path=str(path), n_samples=n_samples)
        return prepare_preferences("d", config, policies, tokenizer, report)

    return call


def row(z: int, chosen: int, rejected: int, **more: Any) -> dict[str, Any]:
    return {"prompt": "z" * z, "chosen": "Q" * chosen, "rejected": "Q" * rejected, **more}


# The sides have 15 and 16, 24 and 21, 18 and 31 tokens.
THREE = [row(2, 3, 4), row(10, 4, 1), row(1, 7, 20)]


def texts(side: TokenizedDataset, index: int, tokenizer: Any) -> tuple[str, str]:
    """The text of a row, and of its trained part."""
    ids, trained = side.row(index)
    return tokenizer.decode(ids), tokenizer.decode(ids[trained])


def counted(data: PreferenceDataset) -> dict[str, Any]:
    """The ledger's numbers that are not 0, and the weights if any is not 1."""
    found = data.ledger.as_dict().items()
    return {key: value for key, value in found if value and value != [1.0, 1.0] and key != "name"}


def test_both_sides_begin_with_the_prompt_and_the_answer_with_its_end_token_is_trained(prepare, tokenizer):
    data = prepare([row(2, 3, 1)])
    start = "<|im_start|>user\nzz<|im_end|>\n<|im_start|>assistant\n"
    assert texts(data.chosen, 0, tokenizer) == (f"{start}QQQ<|im_end|>\n", "QQQ<|im_end|>")
    assert texts(data.rejected, 0, tokenizer) == (f"{start}Q<|im_end|>\n", "Q<|im_end|>")


def test_pairs_are_counted_and_their_tokens_are_those_of_both_sides(prepare):
    data = prepare(THREE)
    assert data.chosen.lengths().tolist() == [15, 24, 18]
    assert data.rejected.lengths().tolist() == [16, 21, 31]
    assert list(data.sizes().lengths) == [31, 45, 49]
    assert list(data.sizes().trained_counts) == [4 + 5, 5 + 2, 8 + 21]
    assert counted(data) == {
        "records": 3,
        "rows": 3,
        "tokens": 125,
        "trained_tokens": 45,
        "longest": 31,
        "answers": 6,
        "answers_with_end": 6,
    }


TOOLS = [{"type": "function", "function": {"name": "clock", "parameters": {}}}]
CALL = {"role": "assistant", "content": "", "tool_calls": [{"name": "clock", "arguments": {"at": 1}}]}
HISTORY = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi\n"},
    {"role": "assistant", "content": "Hello", "reasoning": "A greeting."},
    {"role": "user", "content": " <|im_end|> what now?"},
]
SHAPES: dict[str, dict[str, Any]] = {
    "text": {"prompt": "How many?", "answers": ["Three.", "\nMany, I think."]},
    "messages": {"prompt": HISTORY, "answers": ["Three.", "Four."]},
    "tools": {
        "prompt": HISTORY,
        "tools": TOOLS,
        "answers": [[CALL, {"role": "tool", "content": "12"}, {"role": "assistant", "content": "Noon."}], "Go away."],
    },
    "reasoning": {
        "prompt": "Why?",
        "answers": [
            [{"role": "assistant", "content": "So.", "reasoning": ""}],
            [{"role": "assistant", "content": "?"}],
        ],
    },
}
CHATS = {
    "chatml": {},
    "with a default system message": {"default_system": "You are helpful."},
    "without earlier reasoning": {"train_on": "last", "reasoning_history": "drop"},
    "the tokenizer's own template": {"template": "tokenizer"},
}


@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_each_side_is_id_for_id_what_sft_renders_for_the_same_conversation(
    shape: dict[str, Any], chat: dict[str, Any], prepare, tmp_path: Path, write_jsonl, tokenizer, monkeypatch
):
    monkeypatch.setattr(tokenizer, "chat_template", chatml_template(ChatConfig()))
    inputs = {key: value for key, value in shape.items() if key != "answers"}
    chosen, rejected = shape["answers"]
    data = prepare([{**inputs, "chosen": chosen, "rejected": rejected}], **chat)
    sft_rows = [{**inputs, "completion": answer} for answer in (chosen, rejected)]
    config = DatasetConfig(path=str(write_jsonl(tmp_path / "sft.jsonl", sft_rows)))
    sft = prepare_dataset("sft", config, ChatConfig(**chat), tokenizer, "error")
    for side, index in ((data.chosen, 0), (data.rejected, 1)):
        for ours, theirs in zip(side.row(0), sft.row(index), strict=True):
            assert ours.tolist() == theirs.tolist()


def test_what_comes_before_the_answer_is_what_a_model_is_given_to_answer(prepare, tokenizer):
    from posttrain.conversation.encoder import conversation_encoder
    from posttrain.conversation.messages import parse_conversation

    data = prepare([{"prompt": HISTORY, "chosen": "Three.", "rejected": "Four.", "tools": TOOLS}])
    prompt = conversation_encoder(ChatConfig(), tokenizer).prompts([parse_conversation(HISTORY, TOOLS)])[0]
    for side in (data.chosen, data.rejected):
        ids, trained = side.row(0)
        assert ids[: trained.argmax()].tolist() == prompt


def test_two_files_and_one_file_give_the_same_rows(prepare, tmp_path: Path, write_jsonl):
    names = [("good.jsonl", "chosen"), ("bad.jsonl", "rejected")]
    good, bad = (
        write_jsonl(tmp_path / name, [{"prompt": each["prompt"], "completion": each[side]} for each in THREE])
        for name, side in names
    )
    one = prepare(THREE)
    two = prepare(None, config=TwoFilesDataset(type="two_files", accepted=str(good), rejected=str(bad)))
    assert two.rows_digest() == one.rows_digest()
    assert two.contents.tolist() == one.contents.tolist()
    assert two.digest != one.digest


def test_a_pair_that_is_too_long_on_one_side_is_dropped_as_a_pair(prepare):
    data = prepare(THREE, max_length=24, truncation="drop")
    assert data.chosen.lines.tolist() == data.rejected.lines.tolist() == [1, 2]
    assert counted(data) == {
        "records": 3,
        "dropped": {"too long": 1},
        "rows": 2,
        "tokens": 76,
        "trained_tokens": 16,
        "longest": 24,
        "answers": 4,
        "answers_with_end": 4,
    }


def test_prompts_that_leave_no_room_useless_pairs_and_long_answers_are_counted_apart(prepare):
    rows = [row(30, 1, 2), row(2, 3, 3), row(2, 3, 0), row(2, 30, 1), row(2, 3, 1)]
    data = prepare(rows, max_length=24)
    assert data.ledger.dropped == {
        "identical answers": 1,
        "empty answer": 1,
        "prompt too long": 1,
        "too long": 1,
    }
    assert (data.ledger.records, data.ledger.rows, data.chosen.lines.tolist()) == (5, 1, [5])


def test_cut_on_the_left_both_prompts_lose_the_same_tokens(prepare, tokenizer):
    data = prepare([row(10, 4, 1)], max_length=16, truncation="left")
    # 24 and 21 tokens: both lose 8, namely <|im_start|>, user, newline and 5 of the 10 z.
    assert texts(data.chosen, 0, tokenizer)[0] == "zzzzz<|im_end|>\n<|im_start|>assistant\nQQQQ<|im_end|>\n"
    assert data.chosen.lengths().tolist() == [16]
    assert data.rejected.lengths().tolist() == [13]
    assert data.ledger.cut_left == 1
    prompts = [ids[: trained.argmax()].tolist() for ids, trained in (data.chosen.row(0), data.rejected.row(0))]
    assert prompts[0] == prompts[1]


def test_cut_on_the_right_says_which_answers_lost_their_end(prepare):
    data = prepare(THREE, max_length=24, truncation="right", min_end_tokens_kept=0.5)
    assert (data.ledger.cut_right, data.ledger.answers, data.ledger.answers_with_end) == (1, 6, 5)
    with pytest.raises(DataError, match=r"datasets\.d: only 83\.3% of the answers keep their end token"):
        prepare(THREE, max_length=24, truncation="right")


def test_under_the_policy_error_the_line_of_the_long_pair_is_named(prepare):
    with pytest.raises(DataError, match=r"datasets\.d: line 3: prompt and answer have 31 tokens, the limit is 30"):
        prepare(THREE, max_length=30, truncation="error")


def test_useless_pairs_stop_the_run_where_the_config_says_so_also_when_they_were_dropped_before(prepare):
    prepare([row(1, 2, 2), row(1, 2, 3)])
    with pytest.raises(DataError, match=r"(?m)^  .*rows\.jsonl:1: both answers are the same$") as refused:
        prepare(None, on_useless_pair="error")
    assert "rows.jsonl:2" not in str(refused.value)


def test_a_prompt_that_is_written_otherwise_before_an_answer_is_refused(prepare):
    prompt = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d", "reasoning": "Because."},
        {"role": "tool", "content": "e"},
    ]
    answer = [{"role": "assistant", "content": "f"}, {"role": "user", "content": "g"}]
    rows = [{"prompt": prompt, "chosen": [*answer, {"role": "assistant", "content": "h"}], "rejected": "i"}]
    # Reasoning is kept only after the last user message, and the chosen answer adds a later one.
    with pytest.raises(
        DataError, match=r"^datasets\.d: line 1: the prompt is rendered differently once an answer follows"
    ):
        prepare(rows, train_on="last", reasoning_history="drop")
    assert len(prepare(rows)) == 1


TRIMMED = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("chat", [{}, {"max_length": 9}, {"max_length": 12, "truncation": "right"}])
def test_answers_that_become_the_same_tokens_are_identical_whatever_their_length(
    chat: dict[str, Any], prepare, tokenizer, monkeypatch
):
    monkeypatch.setattr(tokenizer, "chat_template", TRIMMED)
    same = [row(1, 20, 20), row(1, 20, 20)]
    same[0]["rejected"] += " "
    same[1]["rejected"] += "\n"
    rows = [*same, row(1, 2, 2), row(1, 1, 2)]
    chat = {"template": "tokenizer", "min_end_tokens_kept": 0, **chat}
    if chat.get("max_length") == 9:
        with pytest.raises(DataError, match=r"no trained tokens remain from 4 rows \(.*3 identical answers"):
            prepare(rows, **chat)
    else:
        assert prepare(rows, **chat).ledger.dropped == {"identical answers": 3}
    with pytest.raises(DataError, match=r"^datasets\.d: line 1: both answers have the same tokens.*on_useless_pair"):
        prepare([same[0], row(1, 1, 2)], on_useless_pair="error", **chat)


def test_fewer_samples_than_were_asked_for_are_told_at_every_start(prepare):
    rows = [row(1, 40 if number % 2 else 2, 1) for number in range(20)]
    for _ in range(2):
        lines: list[str] = []
        found = prepare(rows, n_samples=12, max_length=32, lines=lines)
        assert len(found) < 12
        assert lines[-1] == f"datasets.d: n_samples is 12, but only {len(found)} rows are left"
    lines = []
    prepare(rows, n_samples=21, lines=lines)
    assert lines[-1] == "datasets.d: n_samples is 21, but only 20 rows are left"
    lines = []
    prepare(rows, n_samples=20, lines=lines)
    assert not any("n_samples" in line for line in lines)


def test_a_data_set_of_which_too_much_would_be_left_out_is_refused(prepare):
    # Of ten records, two have identical answers, one has an empty answer and three are too long: 60 %.
    rows = [row(1, 2, 2)] * 2 + [row(1, 0, 2)] + [row(1, 40, 2)] * 3 + [row(1, 1, 2)] * 4
    assert len(prepare(rows, max_length=32, max_dropped_share=0.6)) == 4
    with pytest.raises(DataError) as refused:
        prepare(rows, max_length=32, max_dropped_share=0.59)
    told = str(refused.value)
    assert told.startswith("datasets.d: 60% of 10 records are left out (")
    assert all(count in told for count in ("3 too long", "2 identical answers", "1 empty answer"))
    assert "more than max_dropped_share: 0.59 allows; check the data and its columns, raise chat.max_length" in told


def test_what_n_samples_leaves_out_is_not_dropped(prepare):
    rows = [row(1, 2, 2)] * 10 + [row(1, 1, 2)] * 30
    # A quarter is useless; none of the others is too long.
    assert len(prepare(rows, n_samples=3, max_dropped_share=0.25)) == 3
    with pytest.raises(DataError, match=r"25% of 40 records are left out \(10 identical answers\)"):
        prepare(rows, n_samples=3, max_dropped_share=0.24)


def test_a_second_start_reads_the_arrays_and_not_the_file(prepare, cache: Path):
    lines: list[str] = []
    first = prepare(THREE, lines=lines)
    again = prepare(None, lines=lines)
    assert len(lines) == 1 and lines[0].startswith("tokenising d (")
    assert again.rows_digest() == first.rows_digest()
    assert again.ledger == first.ledger
    assert len(list(cache.iterdir())) == 2


def test_another_way_of_masking_is_prepared_anew(prepare, tokenizer, trl_template, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", trl_template("qwen2_5"))
    lines: list[str] = []
    prefixed = prepare(THREE, lines=lines, template="tokenizer")
    by = {"lines": lines, "template": "tokenizer", "training_template": trl_template("qwen2_5_training")}
    marked = [prepare(None, **by) for _ in range(2)]
    assert len(lines) == 2
    assert {each.rows_digest() for each in marked} == {prefixed.rows_digest()}


@pytest.mark.parametrize("side", [0, 1])
def test_a_damaged_side_is_prepared_anew(side: int, prepare, cache: Path):
    lines: list[str] = []
    first = prepare(THREE, lines=lines)
    (sorted(cache.iterdir())[side] / "ids.npy").write_bytes(b"")
    assert prepare(None, lines=lines).rows_digest() == first.rows_digest()
    assert len(lines) == 2


def test_n_samples_draws_by_the_seed_keeps_the_order_and_says_what_it_left_out(prepare):
    rows = [row(number, 1, 2) for number in range(1, 21)]
    drawn = [prepare(rows, n_samples=5, seed=seed).chosen.lines.tolist() for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(lines == sorted(set(lines)) and len(lines) == 5 for lines in drawn)
    data = prepare(None, n_samples=5)
    assert data.ledger.dropped == {"not drawn (n_samples)": 15}
    assert (data.ledger.records, data.ledger.rows) == (20, 5)
    assert len(prepare(None, n_samples=50)) == 20


def test_the_digest_names_what_is_taken_of_the_data_and_not_how_it_is_rendered(prepare, tmp_path: Path):
    path = str(tmp_path / "rows.jsonl")
    plain = prepare([row(number, 1, 2, other="Q") for number in range(1, 9)])
    renamed = PairsDataset(path=path, columns=PairColumnsConfig(rejected="other", chosen="rejected"))
    others = [
        prepare(None, config=renamed),
        prepare(None, n_samples=5),
        prepare(None, n_samples=5, seed=1),
        prepare(None, n_samples=6),
    ]
    assert len({each.digest for each in [plain, *others]}) == 5
    for same in (prepare(None, seed=1), prepare(None, max_length=64), prepare(None, on_useless_pair="error")):
        assert same.digest == plain.digest


def test_a_larger_sample_holds_the_smaller_one(prepare):
    rows = [row(number, 1, 2) for number in range(1, 21)]
    few, more = (set(prepare(rows, n_samples=count).chosen.lines.tolist()) for count in (5, 12))
    assert few < more


def test_weights_go_with_their_pairs(prepare):
    data = prepare([row(1, 2, 3, weight=0.5), row(1, 2, 2, weight=9), row(2, 2, 3)])
    assert data.weights.tolist() == [0.5, 1.0]
    assert data.rejected.weights.tolist() == [0.5, 1.0]
    assert list(data.sizes().weights) == [0.5, 1.0]


def test_all_pairs_of_a_prompt_are_on_one_side_of_a_split(prepare):
    rows = [row(z, chosen, 1) for z in range(1, 9) for chosen in (2, 3, 4)]
    data = prepare(rows)
    assert len(set(data.contents.tolist())) == 8
    train, validation = held_out_rows(data.contents.tolist(), 0.25, 0, "d")
    assert len(validation) == 6
    prompts = [{rows[each]["prompt"] for each in part} for part in (train, validation)]
    assert prompts[0].isdisjoint(prompts[1])


def test_labelled_answers_are_rows_of_their_own_good_ones_first(prepare, tmp_path: Path, write_jsonl):
    marked = [
        {"prompt": "z", "completion": "Q", "label": False, "weight": 3},
        {"prompt": "zz", "completion": "QQ", "label": True},
        {"prompt": "zzz", "completion": "", "label": True},
        {"prompt": "z", "completion": "QQQ", "label": 1},
    ]
    path = write_jsonl(tmp_path / "marked.jsonl", marked)
    data = prepare(None, config=LabelledAnswers(type="labelled", path=str(path)))
    assert isinstance(data, LabelledDataset)
    assert data.desirable.tolist() == [True, True, False]
    assert data.completions.lines.tolist() == [2, 4, 1]
    assert data.weights.tolist() == [1, 1, 3]
    # 8 tokens around a prompt, 2 after an answer.
    assert data.completions.lengths().tolist() == [2 + 8 + 2 + 2, 1 + 8 + 3 + 2, 1 + 8 + 1 + 2]
    assert counted(data) == {
        "records": 4,
        "dropped": {"empty answer": 1},
        "rows": 3,
        "tokens": 40,
        "trained_tokens": 9,
        "longest": 14,
        "answers": 3,
        "answers_with_end": 3,
        "weights": [1.0, 3.0],
    }
    assert data.contents[1] == data.contents[2]


def test_labelled_answers_of_one_kind_alone_are_prepared_too(prepare, tmp_path: Path, write_jsonl):
    path = write_jsonl(tmp_path / "good.jsonl", [{"prompt": "z", "completion": "Q", "label": True}])
    data = prepare(None, config=LabelledAnswers(type="labelled", path=str(path)))
    assert isinstance(data, LabelledDataset)
    assert data.desirable.tolist() == [True]


def test_pairs_become_two_labelled_rows_each(prepare):
    pairs = prepare(THREE)
    assert isinstance(pairs, PairedDataset)
    both = LabelledDataset.from_pairs(pairs)
    assert both.desirable.tolist() == [True] * 3 + [False] * 3
    assert both.completions.lengths().tolist() == [15, 24, 18, 16, 21, 31]
    assert np.array_equal(both.completions.row(4)[0], pairs.rejected.row(1)[0])
    assert both.contents.tolist() == [*pairs.contents, *pairs.contents]


def test_pairs_that_do_not_all_weigh_1_are_told_with_their_column(prepare, tmp_path: Path) -> None:
    lines: list[str] = []
    config = PairsDataset(path=str(tmp_path / "rows.jsonl"), columns=PairColumnsConfig(weight="importance"))
    rows = [{"prompt": "z", "chosen": "Q", "rejected": "Q" * n, "importance": n / 4} for n in (2, 12)]
    prepare(rows, config=config, lines=lines)
    assert lines[-1] == "datasets.d: weights 0.5-3 from column importance"
