"""Tokens with their texts and tones: nothing is lost, added or coloured otherwise than it is trained."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.datasets import DatasetConfig
from posttrain.conversation.masks import IGNORED_LABEL
from posttrain.data.preparation import prepare_dataset
from posttrain.dpo.config.data import PairsDataset
from posttrain.dpo.data import Policies, prepare_preferences
from posttrain.errors import DataError
from posttrain.models.padding import pad_rows
from posttrain.preview.dpo import PreferenceRows
from posttrain.preview.sft import ConversationRows
from posttrain.preview.tokens import Token, label, pieces, toned, visible
from preview.conftest import write_rows

TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60).filter(str.strip)
WORDS = st.lists(st.sampled_from(["one", "apples", "é", "\n", "  ", "日本", "🙂"]), min_size=1, max_size=30)
CUTS = st.sampled_from(["left", "right", "drop"])


@pytest.mark.parametrize("name", ["tokenizer", "qwen_like_tokenizer"])
def test_the_texts_of_tokens_add_up_to_the_text(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer = request.getfixturevalue(name)

    @settings(max_examples=60, deadline=None)
    @given(text=TEXTS)
    def check(text: str) -> None:
        ids = tokenizer.encode(text, add_special_tokens=False)
        found = pieces(tokenizer, ids)
        assert len(found) == len(ids)
        assert "".join(found) == tokenizer.decode(ids, clean_up_tokenization_spaces=False)

    check()


def test_a_character_of_several_tokens_is_shown_at_the_last_of_them(tokenizer: Any) -> None:
    ids = tokenizer.encode("🙂", add_special_tokens=False)
    assert len(ids) == 4  # its bytes in UTF-8
    assert pieces(tokenizer, ids) == ["", "", "", "🙂"]


def test_what_is_cut_on_the_left_comes_first(tokenizer: Any) -> None:
    ids = tokenizer.encode("abcde", add_special_tokens=False)
    assert len(ids) == 5
    tones = [token.tone for token in toned(tokenizer, ids, [False, True, True], cut_left=True)]
    assert tones == ["cut", "cut", "context", "trained", "trained"]
    tones = [token.tone for token in toned(tokenizer, ids, [False, True, True], cut_left=False)]
    assert tones == ["context", "trained", "trained", "cut", "cut"]


def test_blanks_and_line_breaks_are_visible_and_control_characters_are_text() -> None:
    assert visible("a b\tc\nd") == "a␠b⇥c⏎\nd"
    assert visible("\x1b[31m\u202e\r") == "\\x1b[31m\\u202e\\r"
    assert label(Token(7, " a\n", "context"), ids=True) == "␠a⏎[7]\n"
    assert label(Token(8, "", "context"), ids=False) == "⋯"


def require_as_trained(tokens: list[Token], ids: Any, trained: Any) -> None:
    """Assert that the tokens that are not cut are the row's, and that just those with a label are coloured."""
    kept = [token for token in tokens if token.tone != "cut"]
    assert [token.id for token in kept] == ids.tolist()
    _, labels = pad_rows([(ids, trained)])
    assert kept[0].tone == "context"  # nothing predicts the first token
    assert [token.tone == "trained" for token in kept[1:]] == (labels[0] != IGNORED_LABEL).tolist()


@settings(max_examples=40, deadline=None)
@given(
    prompts=st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=4),
    max_length=st.integers(12, 60),
    truncation=CUTS,
)
def test_rows_are_coloured_as_they_are_trained(prompts, max_length, truncation, tokenizer, tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("rows")
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"a{''.join(prompt)}"},
                {"role": "assistant", "content": f"b{''.join(answer)}"},
            ]
            * 2
        }
        for prompt, answer in prompts
    ]
    write_rows(folder / "rows.jsonl", rows)
    config = DatasetConfig(path=str(folder / "rows.jsonl"))
    chat = ChatConfig(max_length=max_length, truncation=truncation, min_end_tokens_kept=0)
    try:
        dataset = prepare_dataset("rows", config, chat, tokenizer, "error")
    except DataError:
        return  # nothing is left to train
    shown = ConversationRows("rows", config, chat, tokenizer, dataset)
    lost = shown.lost()
    for row in range(len(dataset)):
        (side,) = shown.show(row, "").sides
        require_as_trained(list(side.tokens), *dataset.row(row))
        assert lost.get(row, 0) == sum(token.tone == "cut" for token in side.tokens)
        if truncation == "drop":
            assert row not in lost


@settings(max_examples=30, deadline=None)
@given(
    answers=st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=1, max_size=3),
    max_length=st.integers(12, 60),
    truncation=CUTS,
)
def test_pairs_are_coloured_as_they_are_trained(answers, max_length, truncation, tokenizer, tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("pairs")
    rows = [
        {"prompt": f"a{''.join(p)}", "chosen": f"b{''.join(one)}", "rejected": f"c{''.join(other)}"}
        for p, one, other in answers
    ]
    write_rows(folder / "pairs.jsonl", rows)
    config = PairsDataset(path=str(folder / "pairs.jsonl"))
    chat = ChatConfig(max_length=max_length, truncation=truncation, min_end_tokens_kept=0)
    try:
        dataset = prepare_preferences("pairs", config, Policies(chat, "error", "drop", 0), tokenizer)
    except DataError:
        return  # nothing is left to train
    shown = PreferenceRows("pairs", config, chat, tokenizer, dataset)
    lost = shown.lost()
    for row in range(len(dataset)):
        found = shown.show(row, "")
        assert found.prompt is not None
        whole = [[*found.prompt.tokens, *side.tokens] for side in found.sides]
        for tokens, side in zip(whole, (dataset.chosen, dataset.rejected), strict=True):
            require_as_trained(tokens, *side.row(row))
        assert lost.get(row, 0) == sum(token.tone == "cut" for tokens in whole for token in tokens)
