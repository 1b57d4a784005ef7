"""Text that is decoded token by token is the text that is decoded at once."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.inference.answering.text_stream import TextStream
from posttrain.inference.engine import Completion, StopReason, completion_text

STOPS = ["###", "Paris", "\n\n", "aab", "é", "🙂"]
TEXTS = st.lists(st.sampled_from([*"ab #P\né🙂漢👩‍🚀\ufffd", "Paris ", "##"]), max_size=30).map("".join)


def pieces(tokenizer: Any, ids: Sequence[int], stop: Sequence[str] = ()) -> list[str]:
    stream = TextStream(tokenizer, stop)
    return [*(stream.add([token]) for token in ids), stream.finish()]


@given(data=st.data())
def test_any_tokens_of_the_packaged_tokenizer(data: st.DataObject, smollm2_tokenizer: Any):
    """Random tokens are mostly broken UTF-8."""
    bytes_ = [smollm2_tokenizer.encode(letter)[0] for letter in "\x80ÿéÃ"]
    token = st.one_of(st.integers(0, len(smollm2_tokenizer) - 1), st.integers(17, 280), st.sampled_from(bytes_))
    ids = data.draw(st.lists(token, max_size=20))
    said = pieces(smollm2_tokenizer, ids)
    assert "".join(said) == completion_text(smollm2_tokenizer, Completion(tuple(ids), StopReason.LENGTH), ())


@given(text=TEXTS, stop=st.lists(st.sampled_from(STOPS), max_size=3), at_once=st.integers(1, 4))
def test_any_text_up_to_any_stop_string(text: str, stop: list[str], at_once: int, smollm2_tokenizer: Any):
    ids = smollm2_tokenizer.encode(text)
    stream = TextStream(smollm2_tokenizer, stop)
    said = [stream.add(ids[start : start + at_once]) for start in range(0, len(ids), at_once)]
    said.append(stream.finish())
    whole = completion_text(smollm2_tokenizer, Completion(tuple(ids), StopReason.STOP), stop)
    assert "".join(said) == whole
    assert not any(string in "".join(said) for string in stop)


def test_a_character_comes_when_its_last_byte_has_come(tiny_tokenizer: Any):
    """The tiny tokenizer spells 🙂 with one token for each of its four bytes."""
    ids = tiny_tokenizer.encode("a🙂b")
    assert len(ids) == 6
    assert pieces(tiny_tokenizer, ids) == ["a", "", "", "", "🙂", "b", ""]


def test_what_may_become_a_stop_string_is_held_back_until_it_cannot(tiny_tokenizer: Any):
    ids = [token for letter in "x##y###z" for token in tiny_tokenizer.encode(letter)]
    assert pieces(tiny_tokenizer, ids, ["###"]) == ["x", "", "", "##y", "", "", "", "", ""]
    assert pieces(tiny_tokenizer, ids[:3], ["###"]) == ["x", "", "", "##"]


def test_a_tokenizer_that_drops_the_first_blank_keeps_the_others(sentence_tokenizer: Any):
    ids = sentence_tokenizer.encode("a b a", add_special_tokens=False)
    assert len(ids) == 3
    assert pieces(sentence_tokenizer, ids) == ["a", " b", " a", ""]


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_model: Any) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.fixture(scope="session")
def sentence_tokenizer() -> Any:
    """Marks the beginning of words, as SentencePiece does; decoding drops the blank of the first one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({"▁a": 0, "▁b": 1, "<unk>": 2}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=backend)
