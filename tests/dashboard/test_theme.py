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
    for colour in theme.COLOURS:
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
