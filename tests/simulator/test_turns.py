import sys

import numpy as np

from kvmill.simulator.turns import COLUMNS, Turns

ROW = (1.5, 0.25, float("nan"), 2.0, 1, True, 7, 3, 2)


def test_rows_come_back_as_they_went_in():
    turns = Turns()
    turns.append(ROW)
    turns.append((2.0, 0.5, 0.01, 3.0, 200, False, 8, 0, 0))
    assert len(turns) == 2
    first, second = turns
    assert np.array_equal(first, ROW, equal_nan=True)
    assert second == (2.0, 0.5, 0.01, 3.0, 200, 0, 8, 0, 0)
    assert np.array_equal(turns.columns(), [first, second], equal_nan=True)
    assert turns.columns().shape == (2, len(COLUMNS))


def test_no_turns_are_a_table_without_rows():
    assert Turns().columns().shape == (0, len(COLUMNS))
    assert list(Turns()) == []


def test_a_copy_of_the_columns_does_not_stop_the_next_turn():
    turns = Turns()
    turns.append(ROW)
    columns = turns.columns()
    turns.append(ROW)
    assert len(columns) == 1


def test_a_million_turns_take_less_than_120_mb():
    turns = Turns()
    for _ in range(10_000):
        turns.append(ROW)
    assert sys.getsizeof(turns._values) * 100 < 120e6
