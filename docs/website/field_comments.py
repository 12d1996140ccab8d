"""Fields in the API reference: their comments, and the help texts of options, as docstrings.

fedrows documents a field by the comment behind it, or by the help text of its `option(...)`. The
tool that reads the code for the reference, Griffe, knows docstrings only.
"""

import ast
import io
import tokenize
from typing import Any

from griffe import Attribute, Docstring, Extension


class FieldComments(Extension):
    """Gives every field without a docstring the comment behind it, above it, or its help text."""

    def on_attribute_instance(self, *, node: Any, attr: Attribute, **_: Any) -> None:
        if attr.docstring is not None or attr.lineno is None or not isinstance(node, ast.AST):
            return
        text = comment(attr)
        call = getattr(node, "value", None)
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "option" and call.args:
            attr.value = ast.unparse(call.args[0])
            text = help_text(call.args[1], attr) if len(call.args) > 1 else text
        if text:
            attr.docstring = Docstring(text, lineno=attr.lineno, parent=attr)


def help_text(node: ast.expr, attr: Attribute) -> str:
    """The help text of an option: a literal, a constant of its module, or an f-string as it is."""
    if isinstance(node, ast.Name) and node.id in attr.module.members:
        node = ast.parse(str(attr.module[node.id].value), mode="eval").body
    if isinstance(node, ast.JoinedStr):
        parts = (x.value if isinstance(x, ast.Constant) else ast.unparse(x) for x in node.values)
        return "".join(map(str, parts))
    return node.value if isinstance(node, ast.Constant) else ""


def comment(attr: Attribute) -> str:
    """The comment in the lines of an attribute, or else the comment lines right above it."""
    lines = attr.lines_collection[attr.filepath]
    source = "\n".join(lines[attr.lineno - 1 : attr.endlineno])
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source.strip()).readline))
    except tokenize.TokenError:
        return ""
    behind = [x.string.lstrip("# ") for x in tokens if x.type == tokenize.COMMENT]
    if behind:
        return " ".join(behind)
    above: list[str] = []
    for line in reversed(lines[: attr.lineno - 1]):
        if not line.strip().startswith("# "):
            break
        above.insert(0, line.strip()[2:])
    return " ".join(above)
