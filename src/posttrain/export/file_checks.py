"""Check a GGUF file without llama.cpp: its tensors, its chat template, and its end and control tokens."""

from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np
from gguf import MODEL_ARCH_NAMES, GGUFReader, ReaderTensor, TensorNameMap, TokenType, get_tensor_name_map
from gguf.quants import dequantize

from posttrain.base.text import first_of
from posttrain.errors import RunError
from posttrain.models.weights.tensor_files import StoredTensor, checkpoint_tensors

# Rounding to 16 bits changes a fingerprint by less.
_SAME = 1e-4


@dataclass(frozen=True)
class ExpectedText:
    """What the file must say of the text.

    Attributes:
        template: the chat template's source.
        end_ids: ids that end a turn.
        control_ids: ids that must be control tokens: those that end or begin a turn.
    """

    template: str
    end_ids: frozenset[int]
    control_ids: frozenset[int]


def check_file(file: Path, model: Path, expected: ExpectedText) -> dict[str, Any]:
    """Check the file against the model in the folder `model`; returns what was counted.

    Raises:
        RunError: naming the tensor, the template or the token that is wrong.
    """
    try:
        reader = GGUFReader(file)
    except (ValueError, KeyError, IndexError, OSError) as error:
        raise RunError(f"{file.name} is not a readable GGUF file: {error}") from error
    check_end_token(reader, expected)
    check_template(reader, expected.template)
    return check_tensors(reader, checkpoint_tensors(model))


def check_end_token(reader: GGUFReader, expected: ExpectedText) -> None:
    """Raise RunError unless the file's end token ends a turn, and its control tokens are marked as such."""
    tokens, kinds = _field(reader, "tokenizer.ggml.tokens"), _field(reader, "tokenizer.ggml.token_type")
    own, ends = _field(reader, "tokenizer.ggml.eos_token_id"), sorted(expected.end_ids)
    if own not in expected.end_ids:
        shown = "none" if own is None else f"{_token(tokens, own)} ({own})"
        wanted = first_of([f"{_token(tokens, end)} ({end})" for end in ends])
        raise RunError(f"end token: the file's is {shown}, but turns end with {wanted}")
    for token in sorted(expected.control_ids):
        if kinds is None or kinds[token] != TokenType.CONTROL:
            raise RunError(
                f"control tokens: {_token(tokens, token)} ({token}) is an ordinary token in the file, so it would not "
                "be recognised in a prompt"
            )


def check_template(reader: GGUFReader, template: str) -> None:
    """Raise RunError unless the file has just this chat template."""
    own = _field(reader, "tokenizer.chat_template")
    if own is None:
        raise RunError("chat template: the file has none")
    if own != template:
        lines = zip(own.split("\n"), template.split("\n"), strict=False)
        line = next((number for number, (one, other) in enumerate(lines, start=1) if one != other), "the last")
        raise RunError(f"chat template: the file's is not the model's; they first differ in line {line}")


def check_tensors(reader: GGUFReader, stored: dict[str, StoredTensor]) -> dict[str, Any]:
    """Check that all values are finite and that no tensor holds the values of another.

    The converter may permute a tensor's rows, so the norms of its rows, sorted, are compared with those of all tensors
    of the model that have its shape. Where a converter changes a tensor in another way, or puts several together, that
    says nothing; what such a tensor does is left to the comparison of answers.

    Returns:
        The number of tensors in the file, of those with a name that the model's tensors have, and their largest
        relative difference.

    Raises:
        RunError: naming the tensors.
    """
    names = _names(reader, stored)
    own, models = {}, {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        if not np.isfinite(values).all():
            raise RunError(f"tensors: {tensor.name} holds values that are not numbers")
        if tensor.name in names and _shape(tensor) == stored[names[tensor.name]].shape:
            name = names[tensor.name]
            own[tensor.name] = _fingerprint(values)
            models[name] = _fingerprint(stored[name].read_float32().numpy())
    own_differences = {each: _difference(values, models[names[each]]) for each, values in own.items()}
    swapped = []
    for name, difference in own_differences.items():
        others = {other: _difference(own[name], of) for other, of in models.items() if of.shape == own[name].shape}
        nearest = min(others, key=lambda other: others[other])
        if difference > _SAME and others[nearest] < difference / 2:
            swapped.append((name, nearest, names[name]))
    if swapped:
        told = starmap("{} holds {} and not {}".format, swapped)
        raise RunError(f"tensors: {len(swapped)} hold the values of others: {'; '.join(list(told)[:3])}")
    return {
        "tensors": len(reader.tensors),
        "compared": len(own),
        "largest_relative_difference": max(own_differences.values(), default=None),
    }


def _names(reader: GGUFReader, stored: dict[str, StoredTensor]) -> dict[str, str]:
    """The model's name of each tensor in the file, as far as gguf's table of the architecture has it."""
    architecture = _field(reader, "general.architecture")
    known = {name: key for key, name in MODEL_ARCH_NAMES.items()}
    if architecture not in known:
        return {}
    blocks = int(_field(reader, f"{architecture}.block_count") or 0)
    table: TensorNameMap = get_tensor_name_map(known[architecture], blocks)
    found = {name: table.get_name(name, try_suffixes=(".weight", ".bias")) for name in stored}
    return {in_file: name for name, in_file in found.items() if in_file is not None}


def _shape(tensor: ReaderTensor) -> tuple[int, ...]:
    return tuple(int(size) for size in reversed(tensor.shape))


def _fingerprint(values: np.ndarray) -> np.ndarray:
    """Sorted norms of the rows, or the sorted values of a vector."""
    rows = values.reshape(len(values), -1).astype(np.float64)
    return np.sort(rows[:, 0] if rows.shape[1] == 1 else np.linalg.norm(rows, axis=1))


def _difference(one: np.ndarray, other: np.ndarray) -> float:
    """Relative to the norm of `other`; infinite between different shapes."""
    return float(np.linalg.norm(one - other) / (np.linalg.norm(other) + 1e-30))


def _field(reader: GGUFReader, name: str) -> Any:
    field = reader.get_field(name)
    return None if field is None else field.contents()


def _token(tokens: Any, token: int) -> str:
    return repr(tokens[token]) if tokens is not None and token < len(tokens) else "a token beyond the vocabulary"
