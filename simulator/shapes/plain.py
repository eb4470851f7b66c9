"""Plain decoders: grouped-query attention and a gated MLP in every layer, full or over a sliding window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..geometry import Geometry
from .layers import Heads, Layer, assemble, gated_mlp
from .values import Values


@dataclass(frozen=True, slots=True)
class Habits:
    """What sets one plain family apart: biases, norms of queries and keys, and which layers slide.

    `slides`: `never`, `all` (a window is set for every layer), `late` (from layer `max_window_layers` on, if
    `use_sliding_window`), `listed` (only as `layer_types` says, if `use_sliding_window`), `three of four`.
    """

    query_bias: bool = False
    norms: Literal["none", "head", "all"] = "none"
    slides: Literal["never", "all", "late", "listed", "three of four"] = "never"
    window: int | None = None


FAMILIES = {
    "llama": Habits(),
    "granite": Habits(),
    "mistral": Habits(slides="all", window=4096),
    "ministral3": Habits(slides="all"),
    "phi3": Habits(slides="all"),
    "qwen2": Habits(query_bias=True, slides="late", window=4096),
    "qwen3": Habits(norms="head", slides="late", window=4096),
    "smollm3": Habits(slides="listed"),
    "olmo2": Habits(norms="all"),
    "olmo3": Habits(norms="all", slides="three of four", window=4096),
}
TIED = ("smollm3",)  # families that share the embedding with the output projection unless the file says otherwise


def plain(values: Values) -> Geometry:
    """Any of `FAMILIES`. Parameters per layer: hidden · size · 2(q + kv) + 3 · hidden · inner + norms and biases."""
    family = str(values.raw("model_type"))
    habits = FAMILIES[family]
    values = values.over({"sliding_window": habits.window, "tie_word_embeddings": family in TIED})
    hidden, heads = values.number("hidden_size"), Heads.of(values)
    body = gated_mlp(hidden, values.number("intermediate_size")) + 2.0 * hidden + attention(values, heads, habits)
    if values.flag("mlp_bias"):
        body += 2.0 * values.number("intermediate_size") + hidden
    return assemble(values, [Layer(kind, body, heads, size) for kind, size in windows(values, habits)])


def attention(values: Values, heads: Heads, habits: Habits) -> float:
    """Parameters of one attention block: projections, their biases, norms of queries and keys."""
    hidden = values.number("hidden_size")
    found = heads.matrices(hidden)
    if values.flag("attention_bias"):
        found += heads.biases() + hidden
    elif habits.query_bias:
        found += heads.biases()
    return found + {"none": 0, "head": 2 * heads.size, "all": (heads.q + heads.kv) * heads.size}[habits.norms]


def windows(values: Values, habits: Habits) -> list[tuple[Literal["full", "sliding"], int]]:
    """Kind and window of every layer."""
    window = _window(values, habits)

    def pattern(index: int) -> str:
        late = habits.slides != "late" or index >= values.count("max_window_layers")
        return "sliding" if late and not (habits.slides == "three of four" and index % 4 == 3) else "full"

    if habits.slides in ("never", "all"):
        layers = values.kinds(lambda _: "full", ("full",))  # such a family has no list of kinds; another one is refused
        kinds = ["sliding"] * len(layers)
    else:
        kinds = values.kinds(pattern, ("full", "sliding"))
    return [("sliding", window) if window and kind == "sliding" else ("full", 0) for kind in kinds]


def _window(values: Values, habits: Habits) -> int:
    """The rows that a sliding layer sees; 0 when no layer slides. A window that no position leaves is none."""
    used, window = values.flag("use_sliding_window"), values.maybe("sliding_window") or 0
    if habits.slides == "never":
        if used:
            raise values.error(f"a {values.raw('model_type')} model with use_sliding_window is not understood")
        return 0
    if window >= values.number("max_position_embeddings") or (habits.slides in ("late", "listed") and not used):
        return 0
    if habits.slides == "listed" and window and values.raw("layer_types") is None:
        raise values.error("use_sliding_window without layer_types is not understood")
    return window
