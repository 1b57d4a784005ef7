"""Tests that need a CUDA device: `pytest -m gpu`. Without the option they are not collected, rather than skipped.

Optional packages such as vLLM or flash attention decide which tests exist.
"""

from pathlib import Path

import pytest
import torch

from vllm_model import write_vllm_model


@pytest.fixture(autouse=True, scope="session")
def cuda() -> torch.device:
    """The CUDA device; without one, pytest exits at once."""
    if not torch.cuda.is_available():
        pytest.exit("pytest -m gpu: there is no CUDA device here", returncode=4)
    return torch.device("cuda")


@pytest.fixture(scope="session")
def gpu_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with heads of 32, which the kernels of vLLM and flash attention take."""
    return write_vllm_model(tiny_model, tmp_path_factory.mktemp("gpu")).with_name("plain")
