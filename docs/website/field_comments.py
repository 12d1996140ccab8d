"""Comments of fields, help of options and arguments in prose, as the API reference shows them.

fedrows documents a field by the comment behind it, or by the help text of its `option(...)`. The
tool that reads the code for the reference, Griffe, knows docstrings only. A docstring explains an
argument in prose ("report: is called …"); the reference shows these as a list.
"""

import ast
import io
import re
import tokenize
from typing import Any

from griffe import Attribute, Docstring, Extension, Function


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

    def on_function_instance(self, *, func: Function, **_: Any) -> None:
        if func.docstring is not None:
            func.docstring.value = listed(func.docstring.value, {x.name for x in func.parameters})


def listed(text: str, names: set[str]) -> str:
    """A docstring whose explanations of arguments ("name: …") are items of a list."""
    first, *rest = text.split("\n\n")
    for i, part in enumerate(rest):
        if not part.startswith((" ", "-")):
            items = re.sub(r"(?:^|(?<=[.;)`]) |\n)(\w+(?:, \w+)*): (?=\S)", r"\n- **\1**: ", part)
            named = re.findall(r"^- \*\*([\w, ]+)\*\*", items, re.MULTILINE)
            if named and all(set(x.split(", ")) <= names for x in named):
                rest[i] = items.replace("\n- ", "\n\n- ", 1)
    return "\n\n".join([first, *rest])


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
