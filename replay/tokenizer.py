"""A model's tokenizer as traces sees it: text in, ids out, control tokens only where they are meant."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# For base models: the tokenizer has no chat template of its own.
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + (message['content'] or '') + '\\n\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


class ChatTokenizer:
    """`traces.tokens.TextTokenizer` over a tokenizer of transformers (the fast kind).

    Control tokens are all added tokens, special or not, except runs of whitespace (some models add those as
    ordinary text). `encode(text, control=False)` never yields one, whatever the text spells.
    """

    def __init__(self, tokenizer: Any, name: str) -> None:
        if not hasattr(tokenizer, "backend_tokenizer"):
            raise UserError(f"model {name}: its tokenizer has no tokenizer.json form, which kvmill needs")
        self._tokenizer, self._name = tokenizer, name
        template = tokenizer.chat_template or _begun(tokenizer) + PLAIN_TEMPLATE
        if isinstance(template, dict):
            template = template.get("tool_use") or template["default"]
        self._template: str = template
        description = tokenizer.backend_tokenizer.to_str()
        spelled = {
            index: token.content
            for index, token in tokenizer.added_tokens_decoder.items()
            if token.special or token.content.strip(" \t\n\r▁")
        }
        self.control_ids: frozenset[int] = frozenset(spelled)
        self._spelled = re.compile("|".join(re.escape(t) for t in sorted(spelled.values(), key=len, reverse=True)))
        self._plain = _without(description, self.control_ids)
        self.renders_tools: bool = bool(re.search(r"\btools\b", self._template))
        self.fingerprint: str = hashlib.sha256((description + "\0" + self._template).encode()).hexdigest()

    def render(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, add_generation_prompt: bool
    ) -> str:
        """The chat template's text for `messages` (and the generation prompt). UserError if it refuses them."""
        try:
            return self._tokenizer.apply_chat_template(
                messages,
                tools=tools or None,
                chat_template=self._template,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
            )
        except Exception as error:  # templates raise whatever their author chose
            if type(error).__module__.partition(".")[0] not in ("jinja2", "builtins"):
                raise
            raise UserError(f"the chat template of {self._name} refuses these messages: {error}") from error

    def encode(self, text: str, control: bool) -> list[int]:
        """Token ids of `text`. `control`: whether control tokens spelled in it become control tokens."""
        if control:
            return self._tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = self._plain.encode(text, add_special_tokens=False).ids
        if self.control_ids.isdisjoint(ids):
            return ids
        # The vocabulary itself merges up to a control token: cut each spelling after its first character.
        cuts = [0, *(match.start() + 1 for match in self._spelled.finditer(text)), len(text)]
        parts = [text[start:end] for start, end in itertools.pairwise(cuts)]
        return [token for part in parts for token in self._plain.encode(part, add_special_tokens=False).ids]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, control tokens spelled out."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def token_text(self, token_id: int) -> str:
        """The text of one token; a lone part of a character shows as the replacement character."""
        return self.decode([token_id])


def _begun(tokenizer: Any) -> str:
    """The token that a base model was taught to begin every text with, where its tokenizer adds one by itself."""
    bos = tokenizer.bos_token
    return bos if bos and tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id] else ""


def _without(description: str, control_ids: frozenset[int]) -> Tokenizer:
    """The same tokenizer without control tokens, nor any other added token that its vocabulary does not hold."""
    from tokenizers import Tokenizer

    spec = json.loads(description)
    vocabulary = spec["model"].get("vocab", {})
    if isinstance(vocabulary, list):
        vocabulary = {entry[0]: index for index, entry in enumerate(vocabulary)}
    spec["added_tokens"] = [
        token
        for token in spec["added_tokens"]
        if token["id"] not in control_ids and vocabulary.get(token["content"]) == token["id"]
    ]
    spec["post_processor"] = None
    return Tokenizer.from_str(json.dumps(spec))
