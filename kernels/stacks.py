"""Keys or values of several layers of one shape: one tensor, with or without a leading dimension, or one per layer."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .checks import rows_contiguous, shaped, together

Stack = Tensor | Sequence[Tensor]


def as_layers(stack: Stack, dims: int) -> list[Tensor]:
    """Views of `dims` dimensions, one per layer; a tensor of one more dimension is taken apart. Else ValueError."""
    if not isinstance(stack, Tensor):
        layers = list(stack)
    else:
        layers = list(stack.unbind(0)) if stack.dim() == dims + 1 else [stack]
    for x in layers:
        shaped("a layer", x, *[None] * dims)
    return layers


def fresh(stack: Stack, rows: int) -> Stack:
    """Uninitialised memory in the form of `stack` (…, n, D), with `rows` in place of n."""
    if not isinstance(stack, Tensor):
        return [x.new_empty(*x.shape[:-2], rows, x.shape[-1]) for x in stack]
    return stack.new_empty(*stack.shape[:-2], rows, stack.shape[-1])


def front(stack: Stack, rows: int) -> Stack:
    """Views of the first `rows` of (…, n, D)."""
    return stack[..., :rows, :] if isinstance(stack, Tensor) else [x[..., :rows, :] for x in stack]


def alike(**stacks: list[Tensor]) -> None:
    """ValueError unless all stacks have the same layers, of one shape but for their last dimension, and one type."""
    (first_name, first), *others = stacks.items()
    if not first:
        raise ValueError(f"{first_name} has no layers")
    for name, stack in others:
        if len(stack) != len(first):
            raise ValueError(f"{name} has {len(stack)} layers, {first_name} {len(first)}")
    for name, stack in stacks.items():
        for layer, x in enumerate(stack):
            label = f"{name}[{layer}]"
            shaped(label, x, *first[0].shape[:-1], stack[0].shape[-1])
            rows_contiguous(label, x)
            together(**{f"{first_name}[0]": first[0], label: x})
            if x.dtype != first[0].dtype:
                raise ValueError(f"{label} is {x.dtype}, {first_name}[0] {first[0].dtype}")


def own_memory(**stacks: list[Tensor]) -> None:
    """ValueError where a row would be written twice: rows that share memory, as expanded ones do, and a layer given
    twice, as keys and as values or as two layers.
    """
    places: dict[int, str] = {}
    for name, stack in stacks.items():
        for layer, x in enumerate(stack):
            label = f"{name}[{layer}]"
            if any(step == 0 and size > 1 for step, size in zip(x.stride(), x.shape, strict=True)):
                raise ValueError(f"{label} is expanded: rows move in place only in memory of their own")
            if x.numel() and places.setdefault(x.data_ptr(), label) != label:
                raise ValueError(f"{label} is {places[x.data_ptr()]}: rows move in place only in memory of their own")
