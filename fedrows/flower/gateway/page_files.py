"""The page that a gateway serves to browsers: the files of one folder.

Where FILE.gz lies beside FILE, a browser that takes gzip gets it: a runtime for WebAssembly is four
times as large without.
"""

from __future__ import annotations

import mimetypes
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

KINDS = {".wasm": "application/wasm", ".mjs": "text/javascript", ".js": "text/javascript"}


class PageFiles(StaticFiles):
    """The files of a folder."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file, packed if there is such a one and the browser takes it."""
        packed, accepts = f"{path}.gz", Headers(scope=scope).get("accept-encoding", "")
        if "gzip" in accepts and self._is_there(packed):
            response = await super().get_response(packed, scope)
            if response.status_code == 200:
                response.headers["content-encoding"] = "gzip"
            response.headers["content-type"] = _kind(path)
        else:
            response = await super().get_response(path, scope)
            if Path(path).suffix in KINDS:
                response.headers["content-type"] = _kind(path)
        response.headers["vary"] = "accept-encoding"
        response.headers["cache-control"] = "no-cache"
        return response

    def _is_there(self, path: str) -> bool:
        try:
            return self.lookup_path(path)[1] is not None
        except (OSError, ValueError):  # a name that no file can have
            return False


def _kind(path: str) -> str:
    guessed = mimetypes.guess_type(path)[0] or "application/octet-stream"
    return KINDS.get(Path(path).suffix, guessed)
