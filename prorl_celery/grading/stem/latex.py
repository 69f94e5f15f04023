"""A number or a choice as models write it, LaTeX and typographic signs included, as plain text.

Every pattern runs in time that grows with the text alone, and texts are cut before (`LONGEST_CHARACTERS`).
"""

from __future__ import annotations

import re

LONGEST_CHARACTERS = 400
"""Of one answer. What is longer is prose."""

_SIGNS = str.maketrans(
    {
        "\u2212": "-",
        "\u2013": "-",
        "\u2010": "-",
        "\u2011": "-",
        "\u2062": "",
        "\u00ba": "\u00b0",
        "\u2103": "\u00b0C",
        "\u2109": "\u00b0F",
        "\u00a0": " ",
        "\u2009": " ",
        "\u202f": " ",
        "\u22c5": "\u00b7",
        "\u2219": "\u00b7",
        "\u2022": "\u00b7",
        "\u2126": "\u03a9",
        "\u212b": "\u00c5",
        "\u03bc": "\u00b5",
        "\u2044": "/",
        "\u2245": "\u2248",
        "$": None,
        "~": " ",
    }
)
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_RAISED_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
_WRAPPER = re.compile(
    r"\\(?:text|textrm|textbf|textit|mathrm|mathbf|mathit|operatorname|rm|bf|unit|si|mbox|boxed)\s*\{"
)
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]{1,40})\}\s*\{([^{}]{1,40})\}")
_SHORT_FRACTION = re.compile(r"\\[dt]?frac\s*(\d)\s*(\d)")
_POWER = re.compile(r"\^\s*\{([^{}]{1,20})\}")
_WORDS = {
    r"\\(?:left|right|displaystyle|quad|qquad|bigl?|bigr?)(?![a-zA-Z])": " ",
    r"\{,\}": ",",
    r"\\[,;:! ]": " ",
    r"\\[()\[\]]": " ",
    r"\^\s*\{?\\circ\}?|\\degree(?![a-zA-Z])|\\textdegree(?![a-zA-Z])": "\u00b0",
    r"\\times(?![a-zA-Z])": "\u00d7",
    r"\\cdot(?![a-zA-Z])": "\u00b7",
    r"\\approx(?![a-zA-Z])|\\simeq(?![a-zA-Z])": "\u2248",
    r"\\pm(?![a-zA-Z])": "\u00b1",
    r"\\mu(?![a-zA-Z])": "\u00b5",
    r"\\Omega(?![a-zA-Z])": "\u03a9",
    r"\\AA(?![a-zA-Z])": "\u00c5",
    r"\\pi(?![a-zA-Z])|\u03c0": "pi",
    r"\\([%$#&_])": r"\1",
}
_REPLACED = [(re.compile(pattern), plain) for pattern, plain in _WORDS.items()]
_BOXED = "\\boxed"


def plain(text: str) -> str:
    """The text without what only lays it out: `\\frac{1}{2}\\,\\text{m s}^{-1}` is `(1)/(2) m s^-1`."""
    text = text[:LONGEST_CHARACTERS].translate(_SIGNS)
    text = _RAISED_RUN.sub(lambda run: "^" + run[0].translate(_RAISED), text)
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    text = _FRACTION.sub(r"(\1)/(\2)", text)
    text = _SHORT_FRACTION.sub(r"(\1)/(\2)", text)
    text = _WRAPPER.sub("{", text)
    text = _POWER.sub(r"^\1", text)
    text = text.replace("{", "").replace("}", "").replace("\u00b0 ", "\u00b0").replace("**", "^")
    return " ".join(text.split())


def last_boxed(text: str) -> str | None:
    """What stands in the last `\\boxed{...}`, braces within braces included; None where none is closed."""
    at = text.rfind(_BOXED)
    while at >= 0:
        opened = at + len(_BOXED)
        while text[opened : opened + 1] == " ":
            opened += 1
        if text[opened : opened + 1] == "{":
            depth = 0
            for end in range(opened, min(len(text), opened + 2 * LONGEST_CHARACTERS)):
                depth += (text[end] == "{") - (text[end] == "}")
                if depth == 0:
                    return text[opened + 1 : end]
        at = text.rfind(_BOXED, 0, at)
    return None
