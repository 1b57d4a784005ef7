"""What all processes of a run agree on."""

import torch
from torch import distributed


def any_rank(is_so: bool) -> bool:
    """Whether it is so on any rank; all ranks must ask, and all get the same answer."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return is_so
    flag = torch.tensor([float(is_so)], device="cuda" if torch.cuda.is_available() else "cpu")
    distributed.all_reduce(flag)
    return bool(flag.item())
