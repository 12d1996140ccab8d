"""A SuperLink that runs takes up its new certificate by itself, without a connection lost.

It does so only if the certificate is valid now, and if an authority signed it that the SuperLink
has trusted since its start: its own ServerApps trust no other one before they start again.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import ssl
from pathlib import Path

from cryptography import x509

EVERY = 5.0  # seconds between two looks at the files


class CertificateReload:
    """Looks at the files of a TLS context, and loads them again when they have changed."""

    def __init__(self, context: ssl.SSLContext, certificate: Path, key: Path, ca: Path) -> None:
        self._context, self._certificate, self._key = context, certificate, key
        self._ca = ca.read_text("ascii")
        self._seen = self._stamp()

    def __call__(self) -> bool:
        """Loads a new certificate if there is one; True if it is in use now."""
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        try:
            self._check()
            self._context.load_cert_chain(self._certificate, self._key)
        except (OSError, ValueError) as error:  # a pair of which one half is new, or another's
            logging.getLogger("fedrows").warning("The new certificate is not used: %s", error)
            return False
        finally:
            self._seen = stamp
        logging.getLogger("fedrows").info("The new certificate %s is used.", self._certificate)
        return True

    async def watch(self) -> None:
        """Looks for ever."""
        while True:
            await asyncio.sleep(EVERY)
            with contextlib.suppress(OSError):
                self()

    def _stamp(self) -> tuple[int, ...]:
        stats = [path.stat() for path in (self._certificate, self._key)]
        return tuple(x for stat in stats for x in (stat.st_mtime_ns, stat.st_ino))

    def _check(self) -> None:
        """Raises an OSError or a ValueError if the pair is no pair, not valid now, or unknown."""
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._certificate, self._key)
        new = x509.load_pem_x509_certificate(self._certificate.read_bytes())
        now = datetime.datetime.now(datetime.UTC)
        if not new.not_valid_before_utc <= now <= new.not_valid_after_utc:
            since, until = new.not_valid_before_utc, new.not_valid_after_utc
            raise ValueError(f"it is valid from {since} to {until} only: make another one.")
        for authority in x509.load_pem_x509_certificates(self._ca.encode()):
            with contextlib.suppress(Exception):
                new.verify_directly_issued_by(authority)
                return
        raise ValueError("an authority signed it that is new: start the SuperLink again.")
