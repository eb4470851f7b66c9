"""Charts taken apart: their layers with the rows that each draws, their marks, and the titles of their axes."""

from __future__ import annotations

from typing import Any


def layers(chart: Any) -> list[dict[str, Any]]:
    """The layers of a chart (those of a panel, where it is made of panels), each with its own `values`."""
    spec = chart.to_dict()
    inner = spec.get("spec", spec)
    return [{"values": _values(layer, inner, spec), **layer} for layer in inner.get("layer", [inner])]


def _values(layer: dict[str, Any], inner: dict[str, Any], spec: dict[str, Any]) -> list[dict[str, Any]]:
    given = layer.get("data") or inner.get("data") or spec.get("data", {})
    return given.get("values") or spec.get("datasets", {}).get(given.get("name"), [])


def mark(layer: dict[str, Any]) -> str:
    """What a layer draws: point, rule, line …"""
    return layer["mark"] if isinstance(layer["mark"], str) else layer["mark"]["type"]


def marked(chart: Any, name: str) -> list[dict[str, Any]]:
    """The layers that draw this."""
    return [layer for layer in layers(chart) if mark(layer) == name]


def titles(chart: Any) -> list[str]:
    """The titles of all axes."""
    encodings = [layer["encoding"] for layer in layers(chart)] + [chart.to_dict().get("encoding", {})]
    return [str(found[axis].get("title")) for found in encodings for axis in ("x", "y") if axis in found]
