"""The packages that a mode of privacy needs, looked for before a run has a folder."""

from __future__ import annotations

from fedrows.privacy.ledger import accounting_package
from fedrows.privacy.options import Privacy


def check_packages(privacy: Privacy) -> None:
    """Raises a FedrowsError if a package is missing that a run in this mode would import."""
    if privacy.secret_sums:
        from fedrows.privacy import keys  # noqa: F401 - it says what is missing
    if privacy.mechanism is not None:
        accounting_package()
