"""Shapes and devices, checked before a kernel runs: it has no bounds checks, and a wrong shape writes anywhere."""

from __future__ import annotations

import torch
from torch import Tensor


def shaped(name: str, x: Tensor, *sizes: int | None) -> None:
    """ValueError unless `x` has these sizes; None is any size."""
    fits = x.dim() == len(sizes) and all(want in (None, got) for want, got in zip(sizes, x.shape, strict=False))
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in sizes)
        raise ValueError(f"{name} must be ({wanted}), not {tuple(x.shape)}")


def together(**tensors: Tensor | None) -> None:
    """ValueError unless all are on the device of the first."""
    given = {name: x for name, x in tensors.items() if x is not None}
    first = next(iter(given))
    for name, x in given.items():
        if x.device != given[first].device:
            raise ValueError(f"{name} is on {x.device}, {first} on {given[first].device}")


def real(**tensors: Tensor) -> None:
    """ValueError unless all are floating point and of one type."""
    first, *others = tensors.items()
    if not first[1].is_floating_point():
        raise ValueError(f"{first[0]} must be floating point, not {first[1].dtype}")
    for name, x in others:
        if x.dtype != first[1].dtype:
            raise ValueError(f"{name} is {x.dtype}, {first[0]} {first[1].dtype}")


def indices(name: str, x: Tensor) -> None:
    """ValueError unless `x` holds indices (int64)."""
    if x.dtype != torch.int64:
        raise ValueError(f"{name} must be int64, not {x.dtype}")


def integers(name: str, x: Tensor) -> None:
    """ValueError unless `x` holds whole numbers of any size."""
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise ValueError(f"{name} must be integers, not {x.dtype}")


def flags(name: str, x: Tensor) -> None:
    """ValueError unless `x` is bool."""
    if x.dtype != torch.bool:
        raise ValueError(f"{name} must be bool, not {x.dtype}")


def spreads(name: str, x: Tensor, *sizes: int) -> None:
    """ValueError unless `x` has these sizes, or fewer leading ones, or 1 in place of some."""
    given = (1,) * (len(sizes) - x.dim()) + tuple(x.shape)
    if len(given) != len(sizes) or any(got not in (1, want) for want, got in zip(sizes, given, strict=True)):
        raise ValueError(f"{name} must spread to {tuple(sizes)}, not be {tuple(x.shape)}")


def rows_contiguous(name: str, x: Tensor) -> None:
    """ValueError unless the last dimension is contiguous."""
    if x.shape[-1] > 1 and x.stride(-1) != 1:
        raise ValueError(f"{name} must be contiguous in its last dimension, not of strides {x.stride()}")
