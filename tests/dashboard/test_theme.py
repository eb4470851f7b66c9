"""Colours are seen on both grounds, and words can be read on the grounds of tokens."""

from __future__ import annotations

import itertools
import math

import pytest

from kvmill.dashboard import theme


def test_contrast_is_that_of_the_accessibility_guidelines():
    assert theme.contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert theme.contrast("#FFFFFF", "#FFFFFF") == 1
    assert theme.contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("ground", [theme.LIGHT, theme.DARK])
def test_every_colour_is_seen_on_a_light_and_on_a_dark_ground(ground: str):
    for colour in (*theme.COLOURS, *theme.HUES):
        assert theme.contrast(colour, ground) > 2.2, colour
    assert theme.contrast(theme.TEXT, ground) > 3.5


def _seen(colour: str) -> tuple[float, float]:
    """Yellow and blue, 0 to 1, that a reader without red receptors sees (Viénot, Brettel & Mollon 1999)."""
    red, green, blue = ((int(colour[at : at + 2], 16) / 255) ** 2.2 for at in (1, 3, 5))
    yellow, blue = 0.11238 * red + 0.88762 * green, 0.00401 * red - 0.00401 * green + blue
    return max(0.0, yellow) ** (1 / 2.2), max(0.0, blue) ** (1 / 2.2)


def test_no_two_colours_are_the_same_to_a_reader_without_red_receptors():
    for one, other in itertools.combinations(theme.COLOURS, 2):
        assert math.dist(_seen(one), _seen(other)) > 0.1, (one, other)


# What readers without red and without green receptors see of linear RGB (Machado, Oliveira & Fernandes 2009).
EYES = {
    "all receptors": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "no green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
}
LMS = ((0.41222147, 0.53633254, 0.05144599), (0.21190350, 0.68069955, 0.10739696), (0.08830246, 0.28171884, 0.62997870))
LAB = (
    (0.21045426, 0.79361779, -0.00407205),
    (1.97799850, -2.42859221, 0.45059371),
    (0.02590404, 0.78277177, -0.80867577),
)


def _times(matrix: tuple[tuple[float, ...], ...], vector: list[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def _oklab(colour: str, eye: str) -> list[float]:
    """OKLab (Ottosson 2020) of what is seen."""
    coded = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in coded]
    seen = [min(1.0, max(0.0, v)) for v in _times(EYES[eye], linear)]
    return _times(LAB, [v ** (1 / 3) for v in _times(LMS, seen)])


@pytest.mark.parametrize(("eye", "least"), [("all receptors", 0.13), ("no red", 0.08), ("no green", 0.08)])
def test_the_hues_of_policies_and_the_grey_of_full_are_told_apart_by_every_reader(eye: str, least: float):
    assert len(theme.HUES) >= 9
    for one, other in itertools.combinations((*theme.HUES, theme.GREY), 2):
        assert math.dist(_oklab(one, eye), _oklab(other, eye)) > least, (one, other)


@pytest.mark.parametrize(("ground", "ink"), [(theme.LIGHT, "#31333F"), (theme.DARK, "#FAFAFA")])
def test_text_is_readable_on_every_token_ground(ground: str, ink: str):
    for share in (0.0, 0.3, 1.0):
        colour, opacity = theme.ground_of(share)
        assert theme.contrast(ink, theme.mixed(colour, ground, opacity)) >= 4.5


def test_the_more_is_kept_the_stronger_the_ground():
    grounds = [theme.ground_of(share)[1] for share in (0.0, 0.2, 0.5, 1.0)]
    assert grounds[0] == 0
    assert grounds == sorted(grounds)
    assert theme.rgba("#0072B2", 0.5) == "rgba(0,114,178,0.5)"
    assert theme.mixed("#000000", "#FFFFFF", 0.5) == "#808080"
