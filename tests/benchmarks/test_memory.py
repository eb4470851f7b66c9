"""Freed memory stays with the process up to the limits that are set: the next call pays for no pages."""

from __future__ import annotations

import subprocess
import sys

import pytest

CALLS = """
import resource
from kvmill.benchmarks import memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def taken(size):
    before = faults()
    block = bytearray(size)
    block[:] = bytes(1) * size
    return faults() - before

set_ = memory.settle()
first, second, mapped = taken(16 << 20), taken(16 << 20), taken(48 << 20)
print(int(set_), first, second, mapped)
"""


def test_blocks_that_were_freed_are_taken_again_without_faults_but_for_the_largest() -> None:
    done = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, check=True)
    told, first, second, mapped = map(int, done.stdout.split())
    if not told:
        pytest.skip("the C library is not glibc")
    assert first > 1000
    assert second < first / 10
    assert mapped > 1000
