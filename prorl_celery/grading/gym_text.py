"""Text that the scorers of `reasoning-gym` would run as Python, read as what it may be: a literal, or arithmetic.

Some of them call `eval` on the reply, and some sympy's `parse_expr`, which is an `eval` too. What a model wrote would
then run in the process that scores it. Here both read the text's tree first, and take numbers, texts, lists and
operators; `parse_expr` also names of no meaning, and calls of mathematical functions.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Callable
from typing import Any

LONGEST = 100_000
ROOM = "reasoning_gym."

_LITERALS: tuple[type[ast.AST], ...] = (
    ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.UnaryOp, ast.BinOp, ast.Load,
    ast.unaryop, ast.operator,
)  # fmt: skip
FUNCTIONS = frozenset((
    "sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "asec", "acsc", "acot", "sinh", "cosh", "tanh",
    "asinh", "acosh", "atanh", "exp", "log", "ln", "sqrt", "cbrt", "Abs", "abs", "erf", "Rational", "Integer", "Float",
))  # fmt: skip
CONSTANTS = frozenset(("pi", "E", "I"))


def plain_eval(text: Any, *_: Any) -> Any:
    """`eval` of a literal or of arithmetic. Raises: `ValueError` for anything else, `SyntaxError`."""
    tree = _tree(text)
    for node in ast.walk(tree):
        if not isinstance(node, _LITERALS):
            raise ValueError(f"no literal: {type(node).__name__}")
    return eval(compile(tree, "answer", "eval"), {"__builtins__": {}})


def plain_parse_expr(text: str, local_dict: dict[str, Any] | None = None, **keywords: Any) -> Any:
    """sympy's `parse_expr` of an expression. Raises: `ValueError` for anything else, and what that raises."""
    import sympy
    from sympy.parsing.sympy_parser import parse_expr

    functions: set[int] = set()
    for node in ast.walk(_tree(text)):
        if isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS or node.keywords:
                raise ValueError("no call of a mathematical function")
            functions.add(id(node.func))
        elif isinstance(node, ast.Name):
            known = node.id in CONSTANTS or node.id in (local_dict or {}) or id(node) in functions
            if not known and (node.id.startswith("_") or hasattr(sympy, node.id) or hasattr(builtins, node.id)):
                raise ValueError(f"no name of a variable: {node.id}")
        elif isinstance(node, ast.Constant):
            if not isinstance(node.value, int | float):
                raise ValueError(f"no number: {node.value!r}")
        elif not isinstance(node, ast.Expression | ast.UnaryOp | ast.BinOp | ast.Load | ast.unaryop | ast.operator):
            raise ValueError(f"no expression: {type(node).__name__}")
    return parse_expr(text, local_dict=local_dict, **keywords)


def no_exec(*_: Any, **__: Any) -> None:
    """In place of `exec`."""
    raise ValueError("nothing is run here")


def tame() -> None:
    """Let every module of the package that is imported read text by the functions above. For a process that does
    nothing but score.
    """
    import sympy
    from sympy.parsing.sympy_parser import parse_expr

    for name, module in list(sys.modules.items()):
        if name.startswith(ROOM):
            space = vars(module)
            space["eval"], space["exec"] = plain_eval, no_exec
            if space.get("parse_expr") is parse_expr:
                space["parse_expr"] = plain_parse_expr
            for alias, value in list(space.items()):
                if value is sympy:
                    space[alias] = _Sympy(sympy)


class _Sympy:
    """sympy, but for what evaluates text."""

    parse_expr: Callable[..., Any] = staticmethod(plain_parse_expr)
    sympify: Callable[..., Any] = staticmethod(no_exec)
    S: Callable[..., Any] = staticmethod(no_exec)

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _tree(text: Any) -> ast.Expression:
    if not isinstance(text, str):
        raise ValueError("no text")
    if len(text) > LONGEST:
        raise ValueError(f"more than {LONGEST} characters")
    return ast.parse(text.strip(), mode="eval")
