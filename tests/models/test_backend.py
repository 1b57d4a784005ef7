"""Which device and dtype a run computes with."""

from pathlib import Path

import pytest
import torch

from posttrain.errors import ModelError
from posttrain.models.backend import compute_dtype, training_device, unused_accelerator

CPU = torch.device("cpu")


def test_a_run_is_on_the_accelerator_where_there_is_one():
    assert training_device().type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_an_accelerator_that_is_not_used_has_its_name():
    assert unused_accelerator(torch.device("mps")) == "an Apple GPU (MPS)"
    assert unused_accelerator(torch.device("xpu")) == "an Intel GPU (XPU)"
    assert unused_accelerator(torch.device("hpu")) == "an accelerator of type hpu"
    assert [unused_accelerator(each) for each in (None, CPU, torch.device("cuda"))] == [None, None, None]


def test_a_dtype_that_was_asked_for_is_taken():
    assert compute_dtype("bfloat16", CPU) is torch.bfloat16
    assert compute_dtype("float32", CPU) is torch.float32


def test_auto_is_bfloat16_exactly_where_the_processor_multiplies_it():
    described = Path("/proc/cpuinfo")
    if not described.is_file():
        assert compute_dtype("auto", CPU) in (torch.bfloat16, torch.float32)
        return
    fast = {"avx512_bf16", "amx_bf16", "amx_tile", "bf16"} & set(described.read_text().split())
    assert compute_dtype("auto", CPU) is (torch.bfloat16 if fast else torch.float32)


def test_float16_on_a_cpu_is_refused_with_what_to_use_instead():
    with pytest.raises(ModelError, match=r"model\.dtype: float16 is for CUDA devices; use auto, bfloat16 or float32"):
        compute_dtype("float16", CPU)


def test_float16_on_a_cuda_device_is_taken():
    assert compute_dtype("float16", torch.device("cuda")) is torch.float16


def test_auto_on_a_cuda_device_that_does_not_multiply_bfloat16_fast_is_float16(monkeypatch):
    # Volta and Turing emulate bfloat16 with float32.
    asked = {}
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **how: asked.update(how) or False)
    assert compute_dtype("auto", torch.device("cuda")) is torch.float16
    assert asked == {"including_emulation": False}
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **how: True)
    assert compute_dtype("auto", torch.device("cuda")) is torch.bfloat16
