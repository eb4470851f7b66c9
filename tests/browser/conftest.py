"""One Chromium for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import browsing
import pytest


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser. Skips, with the reason, where there is none."""
    with browsing.started() as browser:
        yield browser
