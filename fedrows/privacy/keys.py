"""Keys: X25519 agreement, HKDF-SHA256, AES-256-CTR streams, AES-256-GCM boxes, Ed25519.

Everything is made of primitives of the `cryptography` package, and every secret begins with
os.urandom. The WebCrypto of browsers has all of them, too: devices speak the same protocol. A
stream's key serves one stream only, so its counter starts at zero. A box's key serves one box, and
its nonce is random as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedrows.errors import FedrowsError

try:
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import CTR
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as error:
    raise FedrowsError(
        "Private sums need the package cryptography: pip install 'fedrows[privacy]'."
    ) from error

from fedrows.privacy.randomness import fresh

KEY, SIGNATURE = 32, 64  # bytes
MaskWords = NDArray[np.unsignedinteger[Any]]

_CHUNK = 1 << 17  # bytes of stream made at a time: stays in the cache
_ZEROS = bytes(_CHUNK)
_NONCE = 12


class NodeKey:
    """The long-lived Ed25519 key of a node; its public half is registered before any round."""

    def __init__(self, secret: bytes | None = None) -> None:
        self.secret = fresh(KEY) if secret is None else secret
        self._key = Ed25519PrivateKey.from_private_bytes(self.secret)
        self.public = self._key.public_key().public_bytes_raw()

    def sign(self, data: bytes) -> bytes:
        """The signature of some bytes."""
        return self._key.sign(data)


def signed_by(public: bytes, signature: bytes, data: bytes) -> bool:
    """Whether a signature of some bytes is that of the key's owner."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


class AgreementKey:
    """An X25519 key of one round; two parties derive the same secret from their two halves."""

    def __init__(self, secret: bytes | None = None) -> None:
        self.secret = fresh(KEY) if secret is None else secret
        self._key = X25519PrivateKey.from_private_bytes(self.secret)
        self.public = self._key.public_key().public_bytes_raw()

    def agree(self, public: bytes, info: bytes) -> bytes:
        """The key shared with the owner of a public half, bound to both halves and to `info`.

        A half for which every secret would be the same is refused with a ValueError.
        """
        shared = self._key.exchange(X25519PublicKey.from_public_bytes(public))
        return derive(shared, b"".join(sorted((self.public, public))) + info)


def derive(secret: bytes, info: bytes) -> bytes:
    """A key for one purpose out of a secret (HKDF-SHA256)."""
    return HKDF(algorithm=hashes.SHA256(), length=KEY, salt=None, info=info).derive(secret)


def seal(key: bytes, text: bytes, about: bytes) -> bytes:
    """A box that only the key opens, and only together with the same `about`."""
    nonce = fresh(_NONCE)
    return nonce + AESGCM(key).encrypt(nonce, text, about)


def unseal(key: bytes, box: bytes, about: bytes) -> bytes | None:
    """What is in a box; None if the box, the key or what it is about is another."""
    try:
        return AESGCM(key).decrypt(box[:_NONCE], box[_NONCE:], about)
    except (InvalidTag, ValueError):
        return None


def add_stream_(words: MaskWords, key: bytes, *, minus: bool = False) -> None:
    """Adds a key's stream to flat words, or takes it off; both wrap around, as the ring does."""
    stream = Cipher(AES(key), CTR(bytes(16))).encryptor()
    room = bytearray(_CHUNK + 16)  # some versions want a block more than they write
    made = np.frombuffer(room, dtype=words.dtype, count=_CHUNK // words.itemsize)
    act = np.subtract if minus else np.add
    for start in range(0, len(words), len(made)):
        part = words[start : start + len(made)]
        stream.update_into(_ZEROS[: part.nbytes], room)
        act(part, made[: len(part)], out=part)


def stream(key: bytes, count: int, dtype: DTypeLike) -> MaskWords:
    """The first `count` words of a key's stream."""
    words: MaskWords = np.zeros(count, dtype=dtype)
    add_stream_(words, key)
    return words


def random_words(count: int, dtype: DTypeLike) -> MaskWords:
    """Uniform words that nobody else can know."""
    return stream(fresh(KEY), count, dtype)
