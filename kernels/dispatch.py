"""Which form of an operation runs. Its name fixes the mathematics; `impl` picks how.

`reference` is the plain torch of `reference`, `torch` the blocked form for CPUs, `triton` the kernels in `gpu/`. `auto`
takes triton for tensors on a CUDA device and torch elsewhere, and for float64, in which no kernel computes.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from typing import Literal, get_args

import torch
from torch import Tensor

Impl = Literal["auto", "reference", "torch", "triton"]
Chosen = Literal["reference", "torch", "triton"]
IMPLS: tuple[str, ...] = get_args(Impl)


def choose(impl: Impl, *tensors: Tensor) -> Chosen:
    """The form that runs for these tensors. ValueError for an unknown one, and where triton cannot run."""
    if impl not in IMPLS:
        raise ValueError(f"unknown impl {impl!r}: {', '.join(IMPLS)}")
    if impl != "reference" and torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        raise ValueError("the fast forms have no gradient: call them under torch.no_grad(), or with impl='reference'")
    if impl == "auto":
        can = tensors[0].is_cuda and has_triton() and all(x.dtype != torch.float64 for x in tensors)
        return "triton" if can else "torch"
    if impl == "triton":
        if not has_triton():
            raise ValueError("impl='triton' needs the package triton")
        if not tensors[0].is_cuda and not interpreted():
            raise ValueError("impl='triton' needs tensors on a CUDA device (or TRITON_INTERPRET=1, to test)")
        if any(x.dtype == torch.float64 for x in tensors):
            raise ValueError("impl='triton' computes in float32: float64 is for impl='reference' or 'torch'")
    return impl


@cache
def has_triton() -> bool:
    """Whether the package is installed."""
    return importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether Triton runs its kernels in Python, on any tensors."""
    return os.environ.get("TRITON_INTERPRET") == "1"
