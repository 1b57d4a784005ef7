"""GGUF files written by hand from a tiny model's folder, and damages to files that are there."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFReader, GGUFWriter, TokenType, get_tensor_name_map
from gguf.quants import quantize
from transformers import AutoConfig, AutoTokenizer

from posttrain.models.weights.tensor_files import checkpoint_tensors

F32, F16, Q8_0 = GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.Q8_0


def write_gguf(
    model: Path,
    file: Path,
    *,
    kind: GGMLQuantizationType = F32,
    template: str | None = "the template",
    changed: Callable[[dict[str, np.ndarray]], None] = lambda tensors: None,
    ordinary: tuple[str, ...] = (),
) -> Path:
    """Write the Llama in the folder `model` as the converter would, apart from the order of rows.

    Args:
        changed: may change the tensors, by their names in the file.
        ordinary: tokens that are not marked as control tokens.
    """
    config, tokenizer = AutoConfig.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    tensors = {}
    for name, stored in checkpoint_tensors(model).items():
        in_file = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert in_file is not None
        tensors[in_file] = stored.read_float32().numpy()
    changed(tensors)
    writer = GGUFWriter(str(file), "llama")
    writer.add_block_count(config.num_hidden_layers)
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    controls = set(tokenizer.all_special_ids) | {tokenizer.convert_tokens_to_ids("<|im_start|>")}
    writer.add_token_list(tokens)
    writer.add_token_types(
        [
            TokenType.CONTROL if number in controls and token not in ordinary else TokenType.NORMAL
            for number, token in enumerate(tokens)
        ]
    )
    writer.add_eos_token_id(tokenizer.eos_token_id)
    if template is not None:
        writer.add_chat_template(template)
    for name, values in tensors.items():
        to = F32 if values.ndim == 1 else kind
        writer.add_tensor(name, quantize(values, to), raw_dtype=to)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def swap_tensors(file: Path, one: str, other: str) -> None:
    """Swap the values of two tensors of one shape and type in the file."""
    tensors = {tensor.name: tensor for tensor in GGUFReader(file, "r+").tensors}
    kept = np.array(tensors[one].data)
    tensors[one].data[:] = tensors[other].data
    tensors[other].data[:] = kept


def set_number(file: Path, key: str, value: int) -> None:
    """Replace a number in the file's metadata."""
    field: Any = GGUFReader(file, "r+").fields[key]
    field.parts[field.data[0]][0] = value


def replace_text(file: Path, key: str, changes: Mapping[str, str]) -> None:
    """Replace parts of a text in the file's metadata by others of the same length."""
    field: Any = GGUFReader(file, "r+").fields[key]
    text = bytes(field.parts[field.data[0]]).decode()
    for old, new in changes.items():
        assert old in text and len(old.encode()) == len(new.encode())
        text = text.replace(old, new, 1)
    field.parts[field.data[0]][:] = np.frombuffer(text.encode(), dtype=np.uint8)
