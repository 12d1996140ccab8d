"""New certificates and keys in the place of old ones, which are put aside and never deleted.

What is new is made in full beside the old, and then takes its place file by file. Whoever has the
old files goes on until they are replaced there too:

    the SuperLink's certificate    a SuperLink that runs loads it by itself (`certificate_reload`)
    the authority                  ca.pem vouches for the old and the new one until `finish`
    a node's key                   is another node to Flower; runs know it by its state folder
"""

from __future__ import annotations

import datetime
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedrows.files.whole import make_private, reason
from fedrows.flower.launch.certificates import (
    CA,
    CA_KEY,
    NODES,
    SERVER,
    SERVER_KEY,
    CertificateError,
    check_file,
    hosts_of,
    make_authority,
    make_node_key,
    make_server,
    read_certificate,
)

OLD = "old"
END = b"-----END CERTIFICATE-----"


def rotate_server(folder: Path, hosts: Sequence[str] = ()) -> Path:
    """The SuperLink's new certificate, for the same names; where the old one lies."""
    names = list(hosts) or hosts_of(folder / SERVER)
    with _new(folder) as new:
        make_server(folder, names, into=new)
        return _put_aside(folder, new, [SERVER_KEY, SERVER])


def rotate_authority(folder: Path) -> Path:
    """A new authority, with ca.pem vouching for both; where the old one lies."""
    before = read_certificate(folder / CA), (folder / CA).read_bytes()
    check_file(folder / CA_KEY, "It is needed to sign: rotate the authority where it lies")
    if before[1].count(END) > 1:
        raise CertificateError(
            f"{folder / CA} vouches for two authorities already: end that rotation with --finish."
        )
    with _new(folder) as new:
        made = make_authority(new)
        made.write_bytes(made.read_bytes() + before[1])  # the new one first: it signs from now on
        return _put_aside(folder, new, [CA_KEY, CA])


def finish_authority(folder: Path) -> Path:
    """Leaves the new authority alone in ca.pem; where the file with both lies."""
    content = (folder / CA).read_bytes() if read_certificate(folder / CA) else b""
    first, end, rest = content.partition(END)
    if END not in rest:
        raise CertificateError(f"{folder / CA} vouches for one authority: nothing is to finish.")
    server = read_certificate(folder / SERVER)
    try:
        server.verify_directly_issued_by(read_certificate(folder / CA))
    except Exception:
        raise CertificateError(
            f"{folder / SERVER} is still signed by the old authority: rotate it with --server "
            "first."
        ) from None
    with _new(folder) as new:
        (new / CA).write_bytes(first + end + b"\n")
        return _put_aside(folder, new, [CA])


def rotate_node(folder: Path, name: str) -> Path:
    """A node's new key; where the old one lies."""
    files = [f"{NODES}/{name}.key", f"{NODES}/{name}.pub"]
    check_file(folder / files[0], "Make a first key with `fedrows deploy keys --nodes`")
    with _new(folder) as new:
        make_node_key(new, name)
        return _put_aside(folder, new, files)


@contextmanager
def _new(folder: Path) -> Iterator[Path]:
    """A private folder for what is being made; it goes in the end."""
    try:
        new = Path(tempfile.mkdtemp(dir=folder, prefix=".new-"))
    except OSError as error:
        raise CertificateError(f"{folder} cannot be written ({reason(error)}).") from None
    try:
        yield new
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _put_aside(folder: Path, new: Path, names: Sequence[str]) -> Path:
    """Copies the old files into a folder of their own, and puts the new ones in their place."""
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H%M%S.%fZ")
    old = folder / OLD / stamp
    try:
        make_private(old)
        for name in names:
            if (folder / name).exists():
                make_private((old / name).parent)
                shutil.copy2(folder / name, old / name)
        for name in names:
            os.replace(new / name, folder / name)
    except OSError as error:
        raise CertificateError(f"{folder} cannot be written ({reason(error)}).") from None
    return old
