"""Which device a run uses, and what it computes in."""

import torch

from posttrain.errors import ModelError


def training_device() -> torch.device:
    """The accelerator that torch sees first, else the CPU."""
    return torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")


def compute_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """`wanted` is a dtype's name or `auto`.

    That is bfloat16 where `device` computes it fast, float16 on CUDA devices before Ampere, which do not, and else
    float32. A trainer scales the loss of float16, whose small gradients would be 0 otherwise.

    Raises:
        ModelError: float16 on a CPU, whose kernels are slow and whose gradients underflow.
    """
    if wanted == "auto":
        if _fast_bfloat16(device):
            return torch.bfloat16
        return torch.float16 if device.type == "cuda" else torch.float32
    if wanted == "float16" and device.type == "cpu":
        raise ModelError("model.dtype: float16 is for CUDA devices; use auto, bfloat16 or float32 on a CPU")
    return getattr(torch, wanted)


def _fast_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # AVX512-BF16 or AMX: measured 5 times the matrix-product rate of float32; without them it is emulated.
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "amx_tile", "bf16"))
