"""The file of a device's examples: JSON with the columns by their names.

    {"ids": {"item": [4, 9, 31]}, "label": [1, 0, 1], "numbers": {}, "weight": null}

Ids are rows of their tables; a field of lists has a list of ids for every example. `numbers` and
`weight` may be left out. Raw values are columns by the names that the data had in training:

    {"columns": {"movie": ["Heat", "Alien"], "liked": [1, 0]}}
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedrows_device.batches import Examples, ExamplesError
from fedrows_device.encoding import encoded
from fedrows_device.program import VOCABULARY


def read_examples(
    path: Path, data: bytes, manifest: dict[str, Any], program: Path | None = None
) -> Examples:
    """The examples in a file's bytes, for the program of a manifest.

    path: for error messages. program: its folder, which may have the vocabulary of raw values.
    """
    try:
        given = json.loads(data)
        if isinstance(given, dict) and isinstance(given.get("columns"), dict):
            known = {}
            if program is not None and manifest.get("vocabulary") is not None:
                known = json.loads((program / VOCABULARY).read_bytes())
            given = encoded(manifest, known, given["columns"])
        ids, label = given["ids"], given["label"]
        numbers, weight = given.get("numbers"), given.get("weight")
    except ExamplesError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ExamplesError(
            f"{path} is not JSON with `ids` and `label`, or with `columns`."
        ) from None
    return Examples.build(manifest, ids, label, numbers, weight)
