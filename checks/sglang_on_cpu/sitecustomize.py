"""Defines the two torchvision operators whose CUDA library a CPU lacks, before anything imports torchvision."""

import torch

for name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
