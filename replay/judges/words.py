"""Judges of words: exact, contains, flag. All but flags ignore case, kinds of white space and forms of Unicode."""

from __future__ import annotations

import re
import unicodedata

from ...traces.trajectory import Label
from .verdict import Context, Verdict, accepted, decided, undecided

_WRAPPED = re.compile(r"(?<!\w)(\w{1,32})\{([^{}\s]{1,256})\}")
_NO_VALUE = "the label says no answer"


def normalised(text: str) -> str:
    """NFKC, case folded, runs of white space as one blank, none at the ends."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def exact(label: Label, answer: str, context: Context) -> Verdict:
    """The whole answer is one of those accepted."""
    if not (right := accepted(label)):
        return undecided(_NO_VALUE)
    same = normalised(answer) in {normalised(text) for text in right}
    return decided(same, "the answer is the accepted one" if same else "the answer is another one")


def contains(label: Label, answer: str, context: Context) -> Verdict:
    """An accepted answer stands in the answer, not as a part of a longer word or number."""
    if not (right := accepted(label)):
        return undecided(_NO_VALUE)
    said = normalised(answer)
    found = next((text for text in right if _bounded(normalised(text), said)), None)
    return decided(found is not None, "no accepted answer stands in it" if found is None else f"it says {found!r}")


def flag(label: Label, answer: str, context: Context) -> Verdict:
    """The flag of a challenge, letter by letter. If several are given the last one counts.

    `parts`: `wrapped` is 1 if answer and label agree in having a wrapper such as `flag{…}`, 0 if only what is inside
    the wrapper agrees.
    """
    if not (right := accepted(label)):
        return undecided(_NO_VALUE)
    given = _WRAPPED.findall(answer)
    for text in right:
        wrapper = _WRAPPED.fullmatch(text.strip())
        inside = wrapper[2] if wrapper else text.strip()
        if given and given[-1][1] == inside:
            whole = wrapper is not None and wrapper[1] == given[-1][0]
            other = "another wrapper" if wrapper else "a wrapper that the label has not"
            return decided(True, "the whole flag" if whole else f"the flag, with {other}", wrapped=float(whole))
        if not given and _bounded(inside, answer):
            reason = "the flag without its wrapper" if wrapper else "the whole flag"
            return decided(True, reason, wrapped=float(wrapper is None))
    return decided(False, "another flag" if given else "no flag")


def _bounded(value: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) is not None
