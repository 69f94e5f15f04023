"""Runs in an eval's sandbox: makes the control form of a test file, in which every test must fail.

Each test function that counts gets an assertion that is false, in a `finally` around its body, so that it fails however
the body ends; by what exception it ended is told. A library that makes tests pass by what it does to pytest, to
`assert` or to the builtins makes these pass as well, and is found out. Comparisons for equality also ask whether what
is equal to the expected value is equal to everything.
"""

from __future__ import annotations

import ast
import secrets
from collections.abc import Sequence

PROBE = "_probe_eq"
ENDED = "_probe_ended"
"""The names under which a control file has `probe.equal` and `probe.ended`."""
HARMLESS = ("pytest", "mock", "patch", "unittest")
"""Decorators of these leave exceptions what they are."""


def function_name(test_id: str) -> str:
    """The function's name in a test's id: `t.py::Class::test_x[a b::c]` has `test_x`."""
    return test_id.split("[", 1)[0].rsplit("::", 1)[-1]


def control_form(source: str, test_ids: Sequence[str]) -> tuple[str | None, set[str]]:
    """The control form of a test file, and the names of the functions in it that must fail; (None, none of them) for
    what is not Python of this version.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None, set()
    spoiler = _Spoiler({function_name(test_id) for test_id in test_ids})
    spoiler.visit(tree)
    lead = next((at for at, statement in enumerate(tree.body) if not _leads(statement)), len(tree.body))
    tree.body[lead:lead] = ast.parse(f"from _control_probe import equal as {PROBE}, ended as {ENDED}").body
    ast.fix_missing_locations(tree)
    return ast.unparse(tree), spoiler.spoilt


def _leads(statement: ast.stmt) -> bool:
    """Whether it must stay before every other statement: a docstring, an import from the future."""
    if isinstance(statement, ast.ImportFrom):
        return statement.module == "__future__"
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


class _Spoiler(ast.NodeTransformer):
    """Makes the wanted functions fail, and equality probed."""

    def __init__(self, wanted: set[str]) -> None:
        self._wanted = wanted
        self.spoilt: set[str] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self.generic_visit(node)
        if node.name in self._wanted:
            self.spoilt.add(node.name)
            lead = 1 if ast.get_docstring(node, clean=False) is not None else 0
            body: list[ast.stmt] = node.body[lead:] or [ast.Pass()]
            false = ast.parse(f"assert {secrets.token_hex(6)!r} == {secrets.token_hex(6)!r}").body
            caught = f"try: pass\nexcept BaseException as {ENDED}_by:\n    {ENDED}({ENDED}_by)\n    raise"
            handlers = ast.parse(caught).body[0].handlers if _is_plain(node) else []  # type: ignore[attr-defined]
            node.body[lead:] = [ast.Try(body=body, handlers=handlers, orelse=[], finalbody=false)]
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
            return _probe(node.left, node.comparators[0])
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr == "assertEqual" and len(node.args) == 2:
            return ast.Call(
                func=ast.Attribute(value=function.value, attr="assertTrue", ctx=ast.Load()),
                args=[_probe(*node.args)],
                keywords=[],
            )
        return node


def _is_plain(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether no decorator could make an exception a success."""
    for decorator in node.decorator_list:
        name: ast.expr = decorator
        while isinstance(name, (ast.Attribute, ast.Call)):
            name = name.value if isinstance(name, ast.Attribute) else name.func
        if not isinstance(name, ast.Name) or name.id not in HARMLESS:
            return False
    return True


def _probe(left: ast.expr, right: ast.expr) -> ast.Call:
    return ast.Call(func=ast.Name(id=PROBE, ctx=ast.Load()), args=[left, right], keywords=[])
