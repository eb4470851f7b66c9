"""The text-level policies at work: `truncate` and `drop_tool_outputs` edit a list of tokens before it is fed."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torch import Tensor

from ..segments import size_of
from .base import Policy
from .drop import DropToolOutputs
from .running_states import RunningState
from .states import Chunk, PolicyState, Rewrite, Scene
from .truncate import last_tokens, unchanged

if TYPE_CHECKING:
    from ..cache import KvCache


class LiveText:
    """The logical tokens of the text in order; the last `held_back` of them are not in the cache yet."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.held_back = 0

    @staticmethod
    def holds_back(chunk: Chunk) -> bool:
        """The tool response closes the turn: it is cut with the rest before it is fed."""
        return chunk.segment.kind == "tool"

    def extend(self, chunk: Chunk) -> None:
        """The chunk follows."""
        count = chunk.end - chunk.begin
        self.tokens += range(chunk.first, chunk.first + count)
        self.held_back += count * self.holds_back(chunk)

    def rewrite(self, kept: list[int] | None) -> Rewrite | None:
        """Cut down to the tokens at `kept` (ascending; None: nothing is cut), and say what is to be fed."""
        fed = len(self.tokens) - self.held_back
        self.held_back = 0
        if kept is None:
            return Rewrite(fed, self.tokens[fed:], cut=False) if fed < len(self.tokens) else None
        same = min(unchanged(kept), fed)
        self.tokens = [self.tokens[i] for i in kept]
        return Rewrite(same, self.tokens[same:], cut=True)


class TruncateState(RunningState):
    """P and the last tokens of the text."""

    def __init__(self, policy: Policy, scene: Scene) -> None:
        super().__init__(policy, scene)
        self.text = LiveText()

    def holds_back(self, chunk: Chunk) -> bool:
        """As every edited text."""
        return self.text.holds_back(chunk)

    def fed(self, chunk: Chunk) -> None:
        """Extend the text."""
        super().fed(chunk)
        self.text.extend(chunk)

    def close(self, turn: int, index: Tensor, cache: KvCache) -> Rewrite | None:
        """Cut the text to the budget; feed what follows the first dropped token, and what was held back."""
        tail = self.text.tokens[self.fixed :]
        allowed = self.allowed(len(tail))
        if allowed is None:
            return self.text.rewrite(None)
        kept = last_tokens(self.is_forced[tail].tolist(), allowed)
        return self.text.rewrite([*range(self.fixed), *(self.fixed + i for i in kept)])


class DropToolOutputsState(PolicyState):
    """`content` holds, by turn, the logical tokens of a tool segment that will be dropped."""

    def __init__(self, policy: Policy, scene: Scene) -> None:
        super().__init__(policy, scene)
        self.rule = cast(DropToolOutputs, policy)
        self.text = LiveText()
        self.content: dict[int, set[int]] = {}

    def holds_back(self, chunk: Chunk) -> bool:
        """As every edited text."""
        return self.text.holds_back(chunk)

    def fed(self, chunk: Chunk) -> None:
        """Extend the text, and note what of it is a tool's content."""
        self.text.extend(chunk)
        if self.rule.drops(size_of(chunk.segment)):
            offsets = set(range(chunk.begin, chunk.end)) - set(chunk.segment.frame)
            found = {chunk.first + offset - chunk.begin for offset in offsets}
            self.content.setdefault(chunk.segment.turn, set()).update(found)

    def close(self, turn: int, index: Tensor, cache: KvCache) -> Rewrite | None:
        """Drop the content of the turn that has become old."""
        gone = self.content.pop(turn - self.rule.older_than, set())
        kept = [i for i, token in enumerate(self.text.tokens) if token not in gone] if gone else None
        return self.text.rewrite(kept)
