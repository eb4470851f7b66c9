"""`kvmill.session`: a user's own agent loop on a compacted cache, by the engine's own lockstep of one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..traces.tokens import TokenSegment, TokenTrajectory, recall_prompts, repeat_prompts
from ..traces.trajectory import Message
from .branch import Held
from .decoding import Asked, Draft, Ended, Ending, Rules, speak
from .forward import Forward
from .lockstep import Alone
from .model import LoadedModel, load_model
from .policies.base import Policy
from .policies.registry import parse_policy
from .sampling import Sampler, Stops
from .segments import sizes_of
from .talk import Talk, read_message
from .undo import undone_on_error

if TYPE_CHECKING:
    from numpy.typing import NDArray


def session(
    model: str | LoadedModel,
    policy: str | Policy,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "auto",
    threads: int | None = None,
) -> Session:
    """A session on `model` (a name as `kvmill replay` takes, or a loaded model) under `policy` (text or a policy).

    `tools` are schemas as chat APIs take them; `device`, `dtype` and `threads` are for a model given by name. UserError
    on anything that does not exist.
    """
    rule = parse_policy(policy) if isinstance(policy, str) else policy
    loaded = model
    if isinstance(loaded, str):
        loaded = load_model(loaded, device=device, dtype=dtype, threads=threads)
    return Session(loaded, rule, tools or (), seed)


Begun = tuple[Talk, Alone, tuple[Held, ...]]
"""A conversation so far, the caches it was fed to, and what was held by turn."""


class NoRoom(UserError):
    """The model's window cannot hold what is to come."""


class Session:
    """A conversation whose cache a policy compacts at the close of every turn, exactly as in replay.

    System and user messages before the first reply are the prefix P; a turn is one assistant message and the tool
    messages that answer it, and closes when the next user or assistant message (or `generate`, or `close`) comes.
    Every method is all or nothing: one that raises, Ctrl-C included, leaves the session as it was; only a turn that
    `generate` closed before its reply stays closed. Replies cost a second prefill of their own tokens: they are decoded
    first, then fed as replay feeds recorded ones, so that a policy sees the same. Logical tokens are limited to the
    model's window. Not for several threads at once.
    """

    def __init__(
        self,
        model: LoadedModel,
        policy: Policy,
        tools: Sequence[Mapping[str, Any]],
        seed: int,
        *,
        window: int | None = None,
        begun: Begun | None = None,
    ) -> None:
        """`window`: most logical tokens, the model's if not given. `begun`: what was said and fed elsewhere so far."""
        self._model, self._seed = model, seed
        self._window = model.max_positions if window is None else window
        if begun is None:
            talk = Talk.start(model.tokenizer, tools)
            prompts = {**repeat_prompts(model.tokenizer), **recall_prompts(model.tokenizer)}
            text = TokenTrajectory("session", "", "", (), prompts=prompts)
            begun = talk, Alone(Forward(model), text, [policy], seed, room=model.max_positions), ()
        self._talk, self._run, self._held = begun
        self._ended: Ended | None = None
        self._said_tokens = 0

    # -- what a loop does -----------------------------------------------------------------------------------

    def append(
        self,
        role: str,
        text: str,
        *,
        tool_calls: Sequence[Mapping[str, Any]] = (),
        name: str | None = None,
        tool_call_id: str | None = None,
    ) -> None:
        """Add a message: `system`, `developer`, `user`, `tool`, or an `assistant` message that was recorded elsewhere.

        `tool_calls` are as chat APIs write them; `name` and `tool_call_id` are a tool message's. UserError if the chat
        template refuses it, if it answers nothing, or (NoRoom) if the model's window cannot hold it.
        """
        self.add(read_message(role, text, tool_calls, name, tool_call_id, len(self.messages)))

    def add(self, message: Message) -> None:
        """`append` a message as traces hold it."""
        with self._undone_on_error():
            self._take(message)

    def generate(
        self,
        *,
        max_tokens: int = 512,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: Sequence[str] = (),
    ) -> str:
        """The model's next message, which is appended; `ended` tells why it ended.

        It ends where the chat template closes a message (`end`), after a `stop` string (which stays part of the reply:
        text and cache hold the same), after `max_tokens`, or at the model's `window`. Temperature 0 is greedy; else ids
        are drawn with `seed`, by default one that follows from the session's and from how long it is by now.
        UserError if there is nothing to answer, or no room to answer in.
        """
        asked = self.ask(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed, stop=stop)
        with self._undone_on_error():
            return self._reply(asked, self.draft(asked))

    def ask(
        self,
        *,
        max_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: Sequence[str] = (),
    ) -> Asked:
        """What `generate` does before anything is generated; then come `draft` and `answer`, and nothing between."""
        if max_tokens < 1:
            raise UserError(f"max_tokens must be at least 1, not {max_tokens}")
        strings = [stop] if isinstance(stop, str) else list(stop)
        if not all(strings):
            raise UserError("stop strings must not be empty")
        Sampler(temperature, top_p, 0)  # refuses before anything is fed
        with self._undone_on_error():
            self._open()
        pick = Sampler(temperature, top_p, self._draw_seed() if seed is None else seed)
        return self._asked(pick, strings, max_tokens)

    def draft(self, asked: Asked) -> Draft:
        """Generate the reply that was asked for."""
        return speak(self._run, asked.frame.head, asked.rules, self._talk.growing)

    def answer(self, asked: Asked, draft: Draft) -> str:
        """Take the reply that was generated, here or on this session's lane beside others."""
        with self._undone_on_error():
            return self._reply(asked, draft)

    def looks_inside(self, tokens: int) -> bool:
        """Whether the policy looks at the cache inside a message of so many tokens, not only at its end."""
        return any(check <= tokens for check in self._run.branches[0].policy.checks(tokens + 1))

    def close(self) -> None:
        """Close the turn in progress, if its assistant has spoken: the policy compacts now. The session can go on."""
        with self._undone_on_error():
            self._close()

    # -- what it holds --------------------------------------------------------------------------------------

    def kept(self) -> dict[int, list[NDArray[Any]]]:
        """For every compactable layer, one ascending array per KV head: the logical tokens whose rows it holds."""
        layers = [layer.index for layer in self._model.layers if layer.kind == "full"]
        index = self._run.branches[0].index.long().sort(dim=-1).values.cpu().numpy()
        return {layer: list(index[slot]) for slot, layer in enumerate(layers)}

    @property
    def rows(self) -> int:
        """Rows held per compactable layer and KV head."""
        return self._run.branches[0].rows

    @property
    def tokens(self) -> int:
        """Logical tokens fed so far. P is fed before the first reply, and tool messages when their turn closes."""
        return self._run.logical

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V allocated for compactable layers."""
        return self._run.branches[0].lane.cache.nbytes

    @property
    def ids(self) -> tuple[int, ...]:
        """The logical tokens, which `kept` counts."""
        return tuple(self._run.ids)

    @property
    def messages(self) -> tuple[Message, ...]:
        """What was said, in order."""
        return tuple(self._talk.messages)

    @property
    def ended(self) -> Ended | None:
        """Why the last reply ended: `end`, `stop`, `max_tokens` or `window`; None before the first."""
        return self._ended

    @property
    def said_tokens(self) -> int:
        """How many tokens the last reply was generated from; 0 before the first."""
        return self._said_tokens

    @property
    def held(self) -> tuple[Held, ...]:
        """What was held and done, by turn, of those that have closed."""
        return self._held

    @property
    def run(self) -> Alone:
        """The engine's lockstep of one behind it: to look at, not to feed."""
        return self._run

    @property
    def losses(self) -> tuple[str, ...]:
        """What the chat template did not print as it was said, as `code` or `code:COUNT`."""
        return self._talk.transcript.losses()

    # -- how it is done -------------------------------------------------------------------------------------

    @contextmanager
    def _undone_on_error(self) -> Iterator[None]:
        talk, ended, said, held = self._talk.fork(), self._ended, self._said_tokens, self._held
        try:
            with undone_on_error(self._run, self._run.trajectory.segments):
                yield
        except BaseException:
            self._talk, self._ended, self._said_tokens, self._held = talk, ended, said, held
            raise

    def _take(self, message: Message) -> None:
        talk = self._talk
        if message.role == "tool":
            if not talk.answered:
                raise UserError("a tool message answers the assistant's message of a turn that is still open")
            self._require_room(talk.wait(message))
        elif message.role == "assistant":
            self._open()
            self._feed(talk.add("assistant", message))
            talk.answered = True
        elif not talk.begun:
            self._require_room(talk.wait(message))
        else:
            self._close()
            self._feed(talk.add("user", message))
        talk.messages.append(message)

    def _open(self) -> None:
        """Everything that comes before the assistant's next message."""
        if not self._talk.messages:
            raise UserError("nothing to answer yet: append a user message first")
        if not self._talk.begun:
            self._feed(self._talk.flush())
        self._close()

    def _close(self) -> None:
        talk, run = self._talk, self._run
        if not talk.answered:
            return
        self._feed(talk.flush())
        branch = run.branches[0]
        branch.expected = branch.policy.footprint(sizes_of(run.trajectory))
        run.compact(talk.turn)
        run.catch_up()
        counters = run.settle(talk.turn)[id(branch)]
        self._held += (Held.of(self.tokens, branch, counters),)
        talk.close()

    def _feed(self, segment: TokenSegment | None, begin: int = 0) -> None:
        """As replay feeds a recorded segment, from its token `begin` on."""
        if segment is None:
            return
        run = self._run
        self._require_room(segment, begin)
        for chunk in run.chunks(segment, begin):
            run.feed(chunk)
            run.look(chunk)
        run.trajectory = replace(run.trajectory, segments=(*run.trajectory.segments, segment))
        run.ids += segment.ids

    def _require_room(self, segment: TokenSegment | None, begin: int = 0) -> None:
        count = self.tokens - begin + (len(segment.ids) if segment else 0)
        if count > self._window:
            raise NoRoom(f"the session would have {count} tokens, model {self._model.name} takes {self._window}")

    def _asked(self, pick: Sampler, stops: list[str], max_tokens: int) -> Asked:
        window, frame = self._window, self._talk.frame()
        room = window - self.tokens - len(frame.head) - len(frame.closing)
        if room < 1:
            raise NoRoom(f"no room for a reply: the session has {self.tokens} of {window} tokens")
        self._refuse_unknown_ends()
        ending = Ending.of(frame, self._model)
        found = Stops([*stops, *([ending.closes] if ending.closes else [])], self._model.tokenizer.decode)
        limit: Ended = "max_tokens" if max_tokens <= room else "window"
        return Asked(frame, Rules(pick, found, ending.ids, min(max_tokens, room), limit), ending.closes)

    def _reply(self, asked: Asked, draft: Draft) -> str:
        talk, tokenizer = self._talk, self._model.tokenizer
        frame, closes = asked.frame, asked.closes
        text, closing, self._ended = tokenizer.decode(draft.ids), frame.closing, draft.ended
        self._said_tokens = len(draft.ids)
        if closes and closes in text:
            self._ended = "end"
            if text.endswith(closes):
                text, closing = text.removesuffix(closes), ()
        self._feed(talk.reply(frame.head, draft.ids, closing), draft.fed)
        talk.said(text)
        return text

    def _refuse_unknown_ends(self) -> None:
        """The last tokens of a message are not known while it grows."""
        policy = self._run.branches[0].policy
        if policy.checks(self._model.max_positions) and "last:" in str(getattr(policy, "protect", "")):
            raise UserError(f"policy {policy} protects the last tokens of a message, and looks at it while it grows")

    def _draw_seed(self) -> int:
        """Another draw for every reply, and the same one when an interrupted reply is asked for again."""
        return int(hashlib.sha256(f"{self._seed}/{self.tokens}".encode()).hexdigest()[:12], 16)
