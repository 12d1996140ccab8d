"""Where the secrets of the protocols begin: the operating system, or a seed that repeats them.

A node may have to forget everything between two messages, because each has a process of its own.
`replaying` makes a client half draw the same secrets again from a seed that is as secret as they
are, kept until the round is over: see `replay`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

_source: ContextVar[Callable[[int], bytes]] = ContextVar("source", default=os.urandom)


def fresh(count: int) -> bytes:
    """Bytes that nobody else can know."""
    return _source.get()(count)


def below(limit: int) -> int:
    """A number from 0 to limit − 1, each as likely as the other."""
    bits = (limit - 1).bit_length()
    size, spare = -(-bits // 8), -bits % 8
    while True:
        number = int.from_bytes(fresh(size), "little") >> spare
        if number < limit:
            return number


@contextmanager
def replaying(seed: bytes) -> Iterator[None]:
    """Draws everything from a seed of 32 bytes: the same seed gives the same secrets."""
    stream = Cipher(AES(seed), CTR(bytes(16))).encryptor()
    token = _source.set(lambda count: stream.update(bytes(count)))
    try:
        yield
    finally:
        _source.reset(token)
