"""New tokens take padded rows first, then new ones, and start at the mean of the existing rows."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from posttrain.conversation.encoder import HfTextEncoder
from posttrain.models.tokens import add_tokens, extend_model, extend_rows

FOUR = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])


def test_a_row_behind_the_last_one_starts_at_the_mean_of_all():
    assert extend_rows(FOUR, (4,)).tolist() == [*FOUR.tolist(), [4.0, 5.0]]


def test_a_padded_row_is_used_before_a_new_one_and_is_not_part_of_the_mean():
    # Three tokens so far: the fourth row is padding. (1 + 3 + 5) / 3 = 3, (2 + 4 + 6) / 3 = 4.
    assert extend_rows(FOUR, (3,)).tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [3.0, 4.0]]


def test_two_new_tokens_may_take_a_padded_row_and_a_new_one():
    assert extend_rows(FOUR, (3, 4)).tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [3.0, 4.0], [3.0, 4.0]]


def test_padded_rows_that_no_token_takes_stay_as_they_are():
    # Two tokens so far; the third row becomes (1 + 3) / 2 and (2 + 4) / 2.
    assert extend_rows(FOUR, (2,)).tolist() == [[1.0, 2.0], [3.0, 4.0], [2.0, 3.0], [7.0, 8.0]]


def test_without_new_tokens_the_rows_are_the_very_same():
    assert extend_rows(FOUR, ()) is FOUR


def test_the_input_is_left_as_it_was_and_the_dtype_is_kept():
    rows = FOUR.to(torch.bfloat16)
    before = rows.clone()
    assert extend_rows(rows, (3,)).dtype is torch.bfloat16
    assert torch.equal(rows, before)


def test_the_mean_of_many_rows_is_not_taken_in_half_precision():
    # In bfloat16 a running sum of ones stops growing at 256.
    rows = torch.ones(1000, 1, dtype=torch.bfloat16)
    assert extend_rows(rows, (1000,))[-1].item() == 1.0


@pytest.fixture
def tokenizer(tiny_model):
    return AutoTokenizer.from_pretrained(tiny_model)


def test_only_tokens_that_are_missing_are_added(tokenizer):
    assert add_tokens(tokenizer, (), chatml=True) == ()
    assert add_tokens(tokenizer, ("zz", "<|im_end|>", "the-end"), chatml=True) == (380, 381)
    assert add_tokens(tokenizer, ("zz", "the-end"), chatml=True) == ()
    assert tokenizer.convert_tokens_to_ids(["zz", "the-end"]) == [380, 381]


def test_chatml_adds_its_control_tokens_as_special_ones_and_keeps_those_that_are_there():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: id_ for id_, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_special_tokens(["<s>", "<extra>"])
    bare = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<s>", additional_special_tokens=["<extra>"])
    assert add_tokens(bare, ("<word>",), chatml=True) == (258, 259, 260)
    assert bare.convert_ids_to_tokens([256, 257, 258, 259, 260]) == [
        "<s>",
        "<extra>",
        "<|im_start|>",
        "<|im_end|>",
        "<word>",
    ]
    assert {"<s>", "<extra>", "<|im_start|>", "<|im_end|>"} <= set(bare.all_special_tokens)
    # Plain text never encodes to one of them.
    encoder = HfTextEncoder(bare)
    assert encoder.control_id("<|im_end|>") == 259
    assert not {256, 257, 258, 259} & set(encoder.encode(["<s><extra><|im_start|><|im_end|>"])[0])


def test_without_chatml_no_control_tokens_are_added(tiny_model, tmp_path):
    loaded = AutoTokenizer.from_pretrained(tiny_model)
    loaded.save_pretrained(tmp_path)
    for path in tmp_path.iterdir():
        path.write_text(path.read_text().replace("<|im_start|>", "<|other|>"))
    assert add_tokens(AutoTokenizer.from_pretrained(tmp_path), (), chatml=False) == ()
    assert add_tokens(AutoTokenizer.from_pretrained(tmp_path), (), chatml=True) == (380,)


@pytest.fixture(params=["tied", "untied"])
def model(request, tiny_model):
    if request.param == "tied":
        return AutoModelForCausalLM.from_pretrained(tiny_model)
    torch.manual_seed(1)
    config = LlamaConfig.from_pretrained(tiny_model)
    config.tie_word_embeddings = False
    return LlamaForCausalLM(config)


def rows_of(model) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(each.weight.detach().clone() for each in (model.get_input_embeddings(), model.get_output_embeddings()))


@pytest.mark.parametrize(("new_ids", "rows"), [((380, 381), 384), (tuple(range(380, 386)), 386)])
def test_embedding_and_head_grow_only_beyond_the_padded_rows(model, new_ids, rows):
    before = rows_of(model)
    extend_model(model, new_ids)
    for old, new in zip(before, rows_of(model), strict=True):
        assert new.shape == (rows, 64)
        kept = [row for row in range(384) if row not in new_ids]
        assert torch.equal(new[kept], old[kept])
        mean = old[:380].mean(dim=0)
        torch.testing.assert_close(new[list(new_ids)], mean.expand(len(new_ids), -1))
    assert model.config.vocab_size == rows
    tied = model.config.tie_word_embeddings
    assert (model.get_input_embeddings().weight is model.get_output_embeddings().weight) == tied
    assert model(input_ids=torch.tensor([[1, new_ids[-1]]])).logits.shape == (1, 2, rows)


def test_a_new_tokens_logit_is_an_average_one(model):
    extend_model(model, (380,))
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[5, 6, 7]])).logits
    torch.testing.assert_close(logits[..., 380], logits[..., :380].mean(dim=-1))


def test_nothing_happens_to_a_model_that_has_nothing_to_learn(model):
    before = model.get_input_embeddings().weight
    extend_model(model, ())
    assert model.get_input_embeddings().weight is before
