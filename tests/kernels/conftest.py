"""What tests of the fast forms share: a device, shapes, poisoned memory, and how close is close enough."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

ON_GPU = torch.cuda.is_available()
IMPLS = ("torch", "triton")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the fast forms run: a GPU if there is one."""
    return torch.device("cuda" if ON_GPU else "cpu")


@pytest.fixture(autouse=True)
def _triton_is_there(request: pytest.FixtureRequest) -> None:
    """Tests of the Triton form skip, with the reason, where the package is not installed."""
    if "triton" in request.node.name or "gpu" in request.path.stem:
        pytest.importorskip("triton", reason="triton is not installed")


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uninitialised memory is NaN, so that whatever an operation forgets to write is seen."""

    def poison(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(*args: object, **kwargs: object) -> Tensor:
            out = make(*args, **kwargs)
            return out.fill_(float("nan") if out.is_floating_point() else torch.iinfo(out.dtype).min)

        return made

    monkeypatch.setattr(torch, "empty", poison(torch.empty))
    monkeypatch.setattr(torch, "empty_like", poison(torch.empty_like))
    monkeypatch.setattr(Tensor, "new_empty", poison(Tensor.new_empty))
