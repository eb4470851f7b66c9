"""Colours of the dashboard, which colour-blind readers tell apart and which show on a light and on a dark ground.

The palette is Okabe and Ito's ("Color Universal Design", 2008) without its black and its yellow: black is not seen on
a dark ground, yellow not on a light one, and two greys stand in. Policies are many and have hues of their own. A shape,
a sign or a dash says the same again wherever a colour says something.
"""

from __future__ import annotations

BLUE, SKY, GREEN, ORANGE = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
VERMILION, PURPLE, GREY, PALE = "#D55E00", "#CC79A7", "#6F6F6F", "#A3A3A3"
COLOURS = (BLUE, SKY, GREEN, ORANGE, VERMILION, PURPLE, GREY, PALE)
HUES = (BLUE, ORANGE, "#AA4400", "#998800", "#FF77BB", "#22AA88", "#33BBEE", "#8800FF", "#9977FF")
"""Of policies. Searched for, around blue and orange: the two nearest of these and `GREY` are as far from each other as
can be in OKLab (Ottosson 2020), as they are and as readers without red or green receptors see them."""

TEXT = "#808080"
"""Of words inside a chart, which Streamlit does not colour by its theme."""

ACCENT_ON_DARK = "#3B8ED0"
"""Of what is chosen on a page, where `BLUE` would be too dark for words."""

LIGHT, DARK = "#FFFFFF", "#0E1117"
"""The grounds of Streamlit's two themes."""

_KEPT_MOST = 0.55  # opacity of the ground of a token that every layer-head kept: text stays readable on it


def contrast(one: str, other: str) -> float:
    """Contrast of two colours, 1 to 21 (Web Content Accessibility Guidelines 2.2, "relative luminance")."""
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def mixed(colour: str, ground: str, opacity: float) -> str:
    """What is seen of a colour laid over a ground."""
    pairs = zip(_channels(colour), _channels(ground), strict=True)
    return "#" + "".join(f"{round(opacity * over + (1 - opacity) * under):02X}" for over, under in pairs)


def ground_of(share: float) -> tuple[str, float]:
    """Colour and opacity behind a token by the share (0…1) of layer-heads that kept it: the more, the bluer."""
    return BLUE, round(_KEPT_MOST * min(1.0, max(0.0, share)), 3)


def rgba(colour: str, opacity: float) -> str:
    """A colour as style sheets write it."""
    return f"rgba({','.join(map(str, _channels(colour)))},{opacity:g})"


def _channels(colour: str) -> tuple[int, int, int]:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return red, green, blue


def _luminance(colour: str) -> float:
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in (c / 255 for c in _channels(colour))]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
