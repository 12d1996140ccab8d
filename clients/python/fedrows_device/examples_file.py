"""The file of a device's examples: JSON with the columns by their names.

    {"ids": {"item": [4, 9, 31]}, "label": [1, 0, 1], "numbers": {}, "weight": null}

Ids are rows of their tables; a field of lists has a list of ids for every example. `numbers` and
`weight` may be left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedrows_device.batches import Examples, ExamplesError


def read_examples(path: Path, data: bytes, manifest: dict[str, Any]) -> Examples:
    """The examples in a file's bytes, for the program of a manifest. path: for error messages."""
    try:
        given = json.loads(data)
        ids, label = given["ids"], given["label"]
        numbers, weight = given.get("numbers"), given.get("weight")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ExamplesError(f"{path} is not JSON with the columns `ids` and `label`.") from None
    return Examples.build(manifest, ids, label, numbers, weight)
