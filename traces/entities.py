"""Which parts of a text name something: the entity flag of `hybrid` (compaction.md 12), by rules, without a model.

Flagged are: numbers with their unit, versions and dates; identifiers (snake_case, camelCase, dotted, hexadecimal and
anything else that mixes letters and digits, command-line flags); paths, URLs and addresses; quoted strings of at most
80 characters; acronyms, but not the levels of a log; and capitalised names, but not a word that is capitalised only
because a sentence begins. Scripts without capitals yield numbers, identifiers and quotes only.

Texts are untrusted: every pattern starts at a word's or quote's edge and repeats disjoint classes possessively, so the
time is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

Span = tuple[int, int]

_UNIT = (
    r"(?:%|‰|°[CF]?|[kMGTµmn]?(?:s|m|g|b|B|Hz|W|V|A|bit|bps)|[KMGT]i?B|kB|ms|km|kg|cm|mm|min|h|hrs?|hours?|days?"
    r"|weeks?|months?|years?|seconds?|minutes?|tokens?|bytes|USD|EUR|GBP|px|x)"
)
_PATTERNS = tuple(
    re.compile(pattern)
    for pattern in (
        # URL: a scheme of bounded length, then everything up to a blank, quote or bracket.
        r"(?<![^\W_])[A-Za-z][A-Za-z0-9+.\-]{1,15}://[^\s\"'<>`()\[\]{},]++",
        # An address.
        r"(?<![\w.+\-])[\w.+\-]{1,64}@[\w\-]++(?:\.[\w\-]++)++",
        # A number with sign or currency, separators inside, and a unit right after it or one blank away.
        rf"(?<![\w.])[$€£#]?[+\-]?\d++(?:[.,:/\-]\d++)*+(?: ?{_UNIT}(?!\w))?",
        # A path from a root; a Windows drive.
        r"(?<![\w/\\<.~])(?:~|\.\.?)?+(?:[/\\][\w.+@%\-]++)++[/\\]?+",
        r"(?<!\w)[A-Za-z]:\\[\w.+@%\-\\]++",
        # A command-line flag.
        r"(?<![\w\-])--?[A-Za-z][\w\-]++",
        # Short quoted strings on one line. An apostrophe inside a word opens and closes nothing.
        r"\"[^\"\n]{1,80}+\"",
        r"`[^`\n]{1,80}+`",
        r"(?<!\w)'[^'\n]{1,80}+'(?!\w)",
        r"[“„«][^“”„«»\n]{1,80}+[”“»]",
    )
)
_WORD = re.compile(r"\w++(?:[.:/\\\-]\w++)*+")
_SENTENCE_END = re.compile(r"[.!?…\n\r•*]")
_LOG_LEVELS = frozenset(("TRACE", "DEBUG", "INFO", "NOTICE", "WARN", "WARNING", "ERROR", "CRITICAL", "FATAL"))
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")
_FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be but by can could did do does for from had has have he her here his how i if in is it "
        "its let may my no not now of on or our she so that the their then there these they this those to us was we "
        "were what when where which who why will with would yes you your",
    )
)


def entity_spans(text: str) -> list[Span]:
    """Half-open character spans of the entities of `text`, ascending, disjoint; touching spans are joined."""
    found = [match.span() for pattern in _PATTERNS for match in pattern.finditer(text)]
    return _joined(found + _words(text))


def places(text: str, pieces: Sequence[str]) -> list[Span]:
    """The characters of `text` that each token stands for, ascending. `pieces` are the tokens' own texts, in order.

    A piece may lack a blank at its edge or be a part of a character (U+FFFD): such pieces share what lies between the
    neighbours that are found in `text`.
    """
    out: list[Span] = []
    at, waiting = 0, 0
    for piece in pieces:
        # A token is at least one byte and a character at most four: the next piece cannot be farther than this.
        reach = at + len(piece) + 2 + 4 * min(waiting, 1024)
        found = -1 if not piece or "\ufffd" in piece else text.find(piece, at, reach)
        if found < 0:
            waiting += 1
            continue
        out += [(at, found)] * waiting
        out.append((found, found + len(piece)))
        at, waiting = found + len(piece), 0
    return out + [(at, len(text))] * waiting


def flag_tokens(where: Sequence[Span], spans: Sequence[Span]) -> tuple[int, ...]:
    """Offsets of the tokens whose place overlaps a span; both ascend, and spans are disjoint."""
    flagged: list[int] = []
    at = 0
    for offset, (begin, end) in enumerate(where):
        while at < len(spans) and spans[at][1] <= begin:
            at += 1
        if at < len(spans) and begin < end and spans[at][0] < end:
            flagged.append(offset)
    return tuple(flagged)


def _words(text: str) -> list[Span]:
    """Words that are identifiers or names by their own shape or by where they stand."""
    out: list[Span] = []
    before, first_of_sentence = 0, None
    for match in _WORD.finditer(text):
        begin, end = match.span()
        starts = before == 0 or bool(_SENTENCE_END.search(text, before, begin))
        follows = begin - before == 1 and text[before] == " "
        word, before = match.group(), end
        if not _is_name(word):
            first_of_sentence = None
            if _is_identifier(word):
                out.append((begin, end))
        elif starts:
            first_of_sentence = (begin, end)
        else:
            # "Ada Lovelace": the second capital says that the first was not only the sentence's.
            out += [first_of_sentence] if first_of_sentence and follows else []
            out.append((begin, end))
            first_of_sentence = None
    return out


def _is_name(word: str) -> bool:
    """A capital and small letters, no function word: a name, or the first word of a sentence."""
    return word[0].isupper() and word[1:].islower() and word.isalpha() and word.lower() not in _FUNCTION_WORDS


def _is_identifier(word: str) -> bool:
    if any(c.isdigit() for c in word):
        return True
    parts = re.split(r"[.:/\\\-]", word)
    if "_" in word:
        return any(c.isalpha() for c in word)
    if "/" in word or "\\" in word:
        return len(parts) > 2 or "." in word.rpartition("/")[2]
    if "." in word or ":" in word:
        return max(map(len, parts)) > 1 or word.isupper()
    # Any capital after the first letter: camelCase, an acronym, a double name. The level of a log line names nothing.
    if word in _LOG_LEVELS:
        return False
    return word[1:] != word[1:].lower() or (len(word) >= 8 and set(word) <= _HEXADECIMAL)


def _joined(spans: list[Span]) -> list[Span]:
    out: list[Span] = []
    for begin, end in sorted(spans):
        if out and begin <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((begin, end))
    return out
