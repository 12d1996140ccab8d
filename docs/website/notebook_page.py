"""A notebook as a page in Markdown, with its outputs if it was run."""

import base64
import json
from pathlib import Path
from typing import Any

PICTURES = {"image/svg+xml": "svg+xml", "image/png": "png"}


def page_of(path: Path, executed: Path | None = None) -> str:
    """The page of a notebook, with the outputs of an executed copy if its cells are the same."""
    notebook = json.loads(path.read_text("utf-8"))
    if executed is not None and executed.exists():
        other = json.loads(executed.read_text("utf-8"))
        if sources(other) == sources(notebook):
            notebook = other
    return "\n\n".join(filter(None, map(_cell, notebook["cells"]))) + "\n"


def sources(notebook: dict[str, Any]) -> list[tuple[str, str]]:
    """Kind and text of every cell."""
    return [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]


def _cell(cell: dict[str, Any]) -> str:
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return text
    return "\n\n".join([f"```python\n{text}\n```", *map(_output, cell.get("outputs", []))])


def _output(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return _plain("".join(output["text"]))
    data = output.get("data", {})
    for kind, name in PICTURES.items():
        if kind in data:
            content = "".join(data[kind])
            if kind == "image/svg+xml":
                content = base64.b64encode(content.encode()).decode()
            content = content.replace("\n", "")
            return f'<p class="output"><img alt="" src="data:image/{name};base64,{content}"></p>'
    if "text/html" in data:
        lines = "".join(data["text/html"]).splitlines()
        return '<div class="output">' + "\n".join(line for line in lines if line.strip()) + "</div>"
    return _plain("".join(data.get("text/plain", "")))


def _plain(text: str) -> str:
    return f"``` {{ .text .output }}\n{text.rstrip()}\n```" if text.strip() else ""
