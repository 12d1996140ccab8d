"""Why a request of a node or a ServerApp failed, in a sentence for its log."""

from __future__ import annotations

import re

from fedrows.flower.launch.notices import Notices

BREAKS = "{n} connections to the SuperLink broke off within 10 s ({why}): they are tried again."
AWAY = ("refused", "unreachable", "no route", "connecttimeout", "name or service")
SAYS = (401, 403, 413, 503)  # answers in which the gate says why


class FailedRequests:
    """Notes why requests fail; a single broken connection is no news."""

    def __init__(self, notices: Notices | None = None) -> None:
        self.notices = notices or Notices()

    def __call__(self, error: Exception) -> None:
        """Notes an error of httpx."""
        answer = getattr(error, "response", None)
        if answer is None:
            why = " ".join(str(error).split()) or type(error).__name__
            if any(word in why.lower() for word in AWAY):
                self.notices.add("away", f"The server does not answer ({why}): it is tried again.")
                return
            self.notices.count("breaks", BREAKS.replace("{why}", why))
            return
        plain_text = answer.headers.get("content-type", "").startswith("text/plain")
        if plain_text and answer.status_code in SAYS:
            why = " ".join(answer.text.split())[:300]
            # Another reason is said at once, the same one with other numbers is not.
            self.notices.add(re.sub(r"\d+", "", f"refused: {why}"), why)
