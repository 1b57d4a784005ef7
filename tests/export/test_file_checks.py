"""Without llama.cpp, a file with another tensor, template, end token or control token is refused by name."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from transformers import AutoTokenizer

from export.gguf_files import F16, F32, Q8_0, replace_text, set_number, swap_tensors, write_gguf
from posttrain.errors import RunError
from posttrain.export.file_checks import ExpectedText, check_file

TEMPLATE = "{{ first }}\n{{ second }}"


@pytest.fixture(scope="module")
def expected(tiny_model: Path) -> ExpectedText:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    start, end = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    return ExpectedText(TEMPLATE, frozenset({end}), frozenset({start, end}))


@pytest.fixture
def file(tiny_model: Path, tmp_path: Path) -> Path:
    return write_gguf(tiny_model, tmp_path / "tiny.gguf", template=TEMPLATE)


# Relative differences of the norms of rows; 8-bit blocks of 32 values with one scale are within 0.4 % of each value.
@pytest.mark.parametrize(("kind", "most"), [(F32, 1e-7), (F16, 1e-4), (Q8_0, 4e-3)])
def test_a_right_file_of_each_type_is_accepted(
    tiny_model: Path, tmp_path: Path, expected: ExpectedText, kind: GGMLQuantizationType, most: float
):
    counted = check_file(
        write_gguf(tiny_model, tmp_path / "a.gguf", template=TEMPLATE, kind=kind), tiny_model, expected
    )
    # Nine tensors in each of two layers, the embeddings and the last norm.
    assert (counted["tensors"], counted["compared"]) == (20, 20)
    assert counted["largest_relative_difference"] <= most


def test_rows_in_another_order_are_accepted(tiny_model: Path, tmp_path: Path, expected: ExpectedText):
    def permuted(tensors: dict[str, np.ndarray]) -> None:
        tensors["blk.0.attn_q.weight"] = tensors["blk.0.attn_q.weight"][::-1].copy()

    file = write_gguf(tiny_model, tmp_path / "a.gguf", template=TEMPLATE, changed=permuted)
    assert check_file(file, tiny_model, expected)["largest_relative_difference"] < 1e-7


@pytest.mark.parametrize("kind", [F32, Q8_0])
def test_two_swapped_tensors_are_named(
    tiny_model: Path, tmp_path: Path, expected: ExpectedText, kind: GGMLQuantizationType
):
    file = write_gguf(tiny_model, tmp_path / "a.gguf", template=TEMPLATE, kind=kind)
    swap_tensors(file, "blk.0.ffn_up.weight", "blk.1.ffn_gate.weight")
    with pytest.raises(RunError, match=r"^tensors: 2 hold the values of others") as refused:
        check_file(file, tiny_model, expected)
    assert (
        "blk.0.ffn_up.weight holds model.layers.1.mlp.gate_proj.weight and not model.layers.0.mlp.up_proj.weight"
        in str(refused.value)
    )
    assert "blk.1.ffn_gate.weight holds model.layers.0.mlp.up_proj.weight" in str(refused.value)


def test_a_tensor_that_is_there_twice_is_named(tiny_model: Path, tmp_path: Path, expected: ExpectedText):
    def doubled(tensors: dict[str, np.ndarray]) -> None:
        tensors["blk.1.attn_v.weight"] = tensors["blk.1.attn_k.weight"]

    file = write_gguf(tiny_model, tmp_path / "a.gguf", template=TEMPLATE, changed=doubled)
    with pytest.raises(RunError, match=r"^tensors: 1 hold.*blk\.1\.attn_v\.weight holds model\.layers\.1\..*k_proj"):
        check_file(file, tiny_model, expected)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_tensor_with_values_that_are_no_numbers_is_named(
    tiny_model: Path, tmp_path: Path, expected: ExpectedText, value: float
):
    def broken(tensors: dict[str, np.ndarray]) -> None:
        tensors["blk.1.ffn_down.weight"][3, 5] = value

    file = write_gguf(tiny_model, tmp_path / "a.gguf", template=TEMPLATE, changed=broken)
    with pytest.raises(RunError, match=r"^tensors: blk\.1\.ffn_down\.weight holds values that are not numbers"):
        check_file(file, tiny_model, expected)


def test_a_damaged_template_is_refused_with_its_line(file: Path, tiny_model: Path, expected: ExpectedText):
    replace_text(file, "tokenizer.chat_template", {"second": "sacond"})
    with pytest.raises(RunError, match=r"^chat template: .* first differ in line 2$"):
        check_file(file, tiny_model, expected)


def test_a_file_without_a_template_is_refused(tiny_model: Path, tmp_path: Path, expected: ExpectedText):
    with pytest.raises(RunError, match=r"^chat template: the file has none$"):
        check_file(write_gguf(tiny_model, tmp_path / "a.gguf", template=None), tiny_model, expected)


@pytest.mark.parametrize(
    ("token", "shown"),
    [(5, r"'\S+' \(5\)"), (0, r"'<\|endoftext\|>' \(0\)"), (99_999, "a token beyond the vocabulary")],
)
def test_a_wrong_end_token_is_refused_by_name(
    file: Path, tiny_model: Path, expected: ExpectedText, token: int, shown: str
):
    set_number(file, "tokenizer.ggml.eos_token_id", token)
    with pytest.raises(
        RunError, match=rf"^end token: the file's is {shown}.*, but turns end with '<\|im_end\|>' \(2\)"
    ):
        check_file(file, tiny_model, expected)


@pytest.mark.parametrize("token", ["<|im_start|>", "<|im_end|>"])
def test_a_control_token_that_is_an_ordinary_one_is_refused(
    tiny_model: Path, tmp_path: Path, expected: ExpectedText, token: str
):
    file = write_gguf(tiny_model, tmp_path / "a.gguf", template=TEMPLATE, ordinary=(token,))
    with pytest.raises(RunError, match=r"^control tokens: '<\|im_.*' \([12]\) is an ordinary token") as refused:
        check_file(file, tiny_model, expected)
    assert token in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no model at all, but a text of some length"])
def test_what_is_no_gguf_file_is_refused(tmp_path: Path, tiny_model: Path, expected: ExpectedText, content: bytes):
    (tmp_path / "a.gguf").write_bytes(content)
    with pytest.raises(RunError, match=r"a\.gguf is not a readable GGUF file"):
        check_file(tmp_path / "a.gguf", tiny_model, expected)
