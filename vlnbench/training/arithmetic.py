"""How exactly a GPU computes, and what a CPU keeps of it, settled for this process."""

from __future__ import annotations

import os

import torch


def settle_arithmetic(dtype: torch.dtype, *, tf32: bool = False, deterministic: bool = False) -> None:
    """Have float32 be float32 on a GPU, and sums be added up in one order where PyTorch has kernels for that.

    dtype: what a network computes in. tf32: in what float32 is left beside half precision, ten bits will do.
    deterministic: kernels of which PyTorch knows no such variant are named in a warning. To be called before
    anything is computed there.
    """
    tf32 = tf32 and dtype is not torch.float32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True, warn_only=True)


def keep_products() -> None:
    """Have oneDNN keep the code that it makes for products in bfloat16, one per shape. A training in which
    lengths differ has more than the 1024 that it keeps. To be called before the first such product."""
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8192")
