"""What a session generates is what the model says, in one piece or in stretches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from chatter import CHATML, PLAIN, TRIMMED, Chatter
from families import FAMILIES
from sessions import chatting, chatty, replayed, same_rows

from kvmill.errors import UserError
from kvmill.replay.model import LoadedModel
from kvmill.replay.session import Session, session
from kvmill.traces.trajectory import Message

# Policies that look inside a reply while it grows.
LOOKING = [
    "attention(keep=0.3,trigger=tokens:16)",
    "attention(keep=0.2)",
    "hybrid(keep=0.2,entities=role,trigger=tokens:13)",
    "merge(budget=60)",
    "sink_window(keep=0.3,trigger=tokens:7)",
    "random(keep=0.3,trigger=threshold:1.1)",
]


@torch.inference_mode()
def naive(model: LoadedModel, ids: list[int], count: int, ends: frozenset[int]) -> list[int]:
    """Greedy by the library alone, the whole text again for every token."""
    model.module.set_attn_implementation("eager")
    out: list[int] = []
    while len(out) < count:
        logits = model.module(torch.tensor([[*ids, *out]])).logits[0, -1]
        token = max(range(len(logits)), key=lambda i: float(logits[i]))
        if token in ends:
            break
        out.append(token)
    return out


@pytest.mark.parametrize("name", ["tiny", *sorted(FAMILIES)])
def test_greedy_is_the_librarys_own(name: str) -> None:
    run, tokenizer = session(chatting(name), "full"), Chatter()
    text = ""
    for asked in ("Where is the key?", "And the door?"):
        run.append("user", asked)
        text += f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"
        said = run.generate(max_tokens=12)
        want = naive(chatting(name), tokenizer.encode(text, True), 12, frozenset({96}))
        assert said == tokenizer.decode(want)
        text += f"{said}<|im_end|>\n"
    assert list(run.ids) == tokenizer.encode(text, True)


@pytest.mark.parametrize(
    ("policy", "count"), [*((policy, 40) for policy in LOOKING), *((policy, 300) for policy in LOOKING[1::2])]
)
def test_a_reply_in_stretches_keeps_what_replaying_it_keeps(policy: str, count: int) -> None:
    model = chatty()
    run = session(model, policy)
    run.append("user", "Where is the key?")
    for seed in range(2):
        run.generate(max_tokens=count, temperature=1.5, seed=seed)
        run.append("tool", "In room 12 of 17, with Ann Lee.")
    run.close()
    assert run.rows < run.tokens
    same_rows(run, replayed(run, model, policy, run._run.trajectory), within=1e-4)


def test_ids_are_those_that_were_picked_and_the_templates_closing() -> None:
    run = session(chatty(), "te(keep=0.3)")
    run.append("user", "Hi")
    said = run.generate(max_tokens=9)
    tokenizer = Chatter()
    assert run.ended == "max_tokens"
    head = tokenizer.encode("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", True)
    assert list(run.ids) == [*head, *tokenizer.encode(said, True), *tokenizer.encode("<|im_end|>\n", True)]
    assert run._run.trajectory.segments[-1].scored == (11, 21)
    assert run.messages[-1] == Message("assistant", said)
    assert run.losses == ()


def forced(run: Session, text: str) -> None:
    """Make the model say `text`, whatever it would have said."""
    tokenizer, forward = Chatter(), run._run.forward
    script = iter(tokenizer.encode(text, True))
    forward.log_probabilities = lambda hidden: torch.nn.functional.one_hot(torch.tensor(next(script)), 97).float()  # type: ignore[method-assign]


def spoken(template: str, text: str, **options: object) -> tuple[Session, str]:
    run = session(chatty(template), "attention(keep=0.5,trigger=tokens:6)")
    run.append("user", "Hi")
    forced(run, text)
    return run, run.generate(**options)  # type: ignore[arg-type]


def test_a_reply_ends_where_the_template_closes_it_or_where_it_is_told_to() -> None:
    run, said = spoken(CHATML, "Hello there.<|im_end|>more")
    assert (said, run.ended) == ("Hello there.", "end")
    run, said = spoken(CHATML, "Hello there. STOP more", stop=["STO", "P m"])
    assert (said, run.ended) == ("Hello there. STO", "stop")
    assert Chatter().decode(run.ids).endswith("assistant\nHello there. STO<|im_end|>\n")
    run, said = spoken(CHATML, "<|im_end|>")
    assert (said, run.ended) == ("", "end")
    run, said = spoken(PLAIN, "Hello.\n\nuser: more")
    assert (said, run.ended, run.losses) == ("Hello.", "end", ())
    assert Chatter().decode(run.ids) == "user: Hi\n\nassistant: Hello.\n\n"
    run, said = spoken(PLAIN, "Hello, world", max_tokens=5)
    assert (said, run.ended) == ("Hello", "max_tokens")
    assert Chatter().decode(run.ids) == "user: Hi\n\nassistant: Hello\n\n"


def test_a_template_that_prints_a_reply_otherwise_is_a_loss_and_the_ids_stay() -> None:
    run, said = spoken(TRIMMED, "  so <|im_start|> it is <|im_end|>")
    assert said == "  so <|im_start|> it is "
    assert run.losses == ("reply_printed_otherwise:1",)
    assert Chatter().decode(run.ids).endswith("assistant\n  so <|im_start|> it is <|im_end|>\n")
    run.append("user", "Ok")
    assert Chatter().decode(run.ids).endswith("it is <|im_end|>\n<|im_start|>user\nOk<|im_end|>\n")


def test_a_reply_ends_at_the_models_window() -> None:
    small = replace(chatty(), max_positions=60)
    run = session(small, "te(keep=0.2)")
    run.append("user", "Where?")
    run.generate(temperature=0.0, max_tokens=500)
    assert (run.ended, run.tokens) == ("window", 60)
    before = run.messages
    with pytest.raises(UserError, match=r"the session would have 80 tokens, model tiny takes 60"):
        run.append("tool", "too long now")
    with pytest.raises(UserError, match=r"no room for a reply: the session has 60 of 60 tokens"):
        run.generate()
    assert (run.messages, run.tokens) == (before, 60)


def test_draws_are_seeded() -> None:
    def said(own: int = 0, temperature: float = 1.0, **options: float) -> list[str]:
        run = session(chatty(), "te(keep=0.3)", seed=own)
        run.append("user", "Hi")
        return [run.generate(max_tokens=20, temperature=temperature, **options) for _ in range(2)]  # type: ignore[arg-type]

    assert said() == said()
    assert said() != said(1)
    assert said(seed=5) == said(1, seed=5)
    assert said(seed=5) != said(seed=6)
    assert said(top_p=1e-9) == said(temperature=0.0) == said(temperature=0.0, seed=6)
