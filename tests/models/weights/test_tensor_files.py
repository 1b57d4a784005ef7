"""Tensors are divided among files of at most 5 GB, in order, under the names that loaders look for."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from posttrain.models.weights.tensor_files import in_files, output_tensor, write_index, write_shard


def test_tensors_of_3_2_2_and_6_gb_come_into_three_files() -> None:
    gigabyte = 10**9 // 4  # weights of 4 bytes
    tensors = [
        output_tensor(name, torch.empty(size * gigabyte, device="meta"), torch.Tensor)
        for name, size in {"a": 3, "b": 2, "c": 2, "d": 6}.items()
    ]
    files = {file: [each.name for each in group] for file, group in in_files(tensors).items()}
    assert files == {
        "model-00001-of-00003.safetensors": ["a", "b"],
        "model-00002-of-00003.safetensors": ["c"],
        "model-00003-of-00003.safetensors": ["d"],
    }


def test_one_file_has_the_plain_name_and_no_index(tmp_path: Path) -> None:
    weights = {"a": torch.arange(6.0).view(2, 3), "b": torch.arange(4, dtype=torch.bfloat16)}
    files = in_files(output_tensor(name, each, each.clone) for name, each in weights.items())
    [(file, tensors)] = files.items()
    write_shard(tmp_path / file, tensors, lambda: None)
    write_index(tmp_path, files)
    assert [each.name for each in tmp_path.iterdir()] == ["model.safetensors"]
    read = load_file(tmp_path / file)
    assert all(torch.equal(read[name], each) for name, each in weights.items())
