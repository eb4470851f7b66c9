"""The verdict as JUnit XML: one case per policy and family, and one for the night as a whole.

The last one fails whenever the night is not green, also where no single row says why.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from typing import Any

from ..replay.gate_nouns import INSUFFICIENT

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(found: Mapping[str, Any]) -> bytes:
    """The file, as UTF-8."""
    pairs: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in found["rows"]:
        pairs.setdefault((row["policy"], row["family"]), []).append(row)
    suite = ET.Element("testsuite", name=_text(found["name"]), time=f"{found['duration_s']:.3f}")
    failures = sum(_case(suite, policy, family, rows) for (policy, family), rows in sorted(pairs.items()))
    night = ET.SubElement(suite, "testcase", classname="night", name="verdict", time=f"{found['duration_s']:.3f}")
    if found["exit_code"]:
        counts = ", ".join(f"{number} {category}" for category, number in sorted(found["counts"].items()))
        failure = ET.SubElement(night, "failure", type=found["verdict"], message=f"the night is {found['verdict']}")
        failure.text = _text(f"run {found['run']} against {found['baseline'] or 'no baseline'}: {counts or 'no rows'}")
        failures += 1
    suite.set("tests", str(len(pairs) + 1))
    suite.set("failures", str(failures))
    suite.set("errors", "0")
    root = ET.Element("testsuites", tests=suite.get("tests", ""), failures=str(failures))
    root.append(suite)
    return ET.tostring(root, encoding="utf-8", xml_declaration=True)


def _case(suite: ET.Element, policy: str, family: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    """One case; whether it failed."""
    case = ET.SubElement(suite, "testcase", classname=_text(family), name=_text(policy))
    bad = [row for row in rows if row["blocks"] or row["category"] == INSUFFICIENT]
    if bad:
        kinds = ", ".join(dict.fromkeys(row["category"] for row in bad))
        failure = ET.SubElement(case, "failure", type=kinds, message=_text(bad[0]["detail"]))
        failure.text = _text("\n".join(f"{row['category']}: {row['detail']}" for row in bad))
    rest = [row for row in rows if row not in bad]
    if rest:
        out = ET.SubElement(case, "system-out")
        out.text = _text("\n".join(f"{row['category']}: {row['detail']}" for row in rest))
    return bool(bad)


def _text(value: str) -> str:
    """Without the characters that XML 1.0 cannot hold."""
    return _NOT_XML.sub("\ufffd", value)
