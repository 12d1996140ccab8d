"""Text files with a record on every line: plain, gzipped or in a zip, read as a stream.

A line that cannot be right is an error that names the file, the line's number and the value. With
`skip_bad` such lines are left out and counted instead, and the count is in the notes.
Of a zip one member is read, whatever else it holds; nothing is unpacked onto the disk.
"""

from __future__ import annotations

import gzip
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from fedrows.errors import DataError
from fedrows.files.fetch import Source, path, require

PIECE = 1 << 24  # bytes read at a time
LONGEST = 1 << 24  # of a line, in bytes
SHOWN = 60  # characters of a value in a sentence

_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError)


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


def find(source: Source, forms: Mapping[str, Sequence[str]], form: str) -> tuple[str, Path]:
    """The form of a data set that lies in its folder, and the file; `auto` takes the first found.

    forms: form → the names its file may have. What no form has is fetched as the source says.
    """
    folder = path(source).parent
    wanted = forms if form == "auto" else {form: forms[form]}
    for name, files in wanted.items():
        for file in files:
            if (folder / file).is_file():
                return name, folder / file
    if any(source.file in files for files in wanted.values()):
        return form, require(source)  # says how to get it
    raise DataError(
        f"There is no file {folder / forms[form][0]}: put it there, or choose another form than "
        f"{form}."
    )


class TextFile:
    """A file of lines; `member` is what the file is called inside a zip."""

    def __init__(
        self, file: Path, *, member: str = "", encoding: str = "utf-8", skip_bad: bool = False
    ) -> None:
        self.file = file
        self.encoding = encoding
        self._member = member
        self._skip_bad = skip_bad
        self._bad = 0
        self._first_bad = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out, if anything was."""
        if not self._bad:
            return ()
        what = "1 line" if self._bad == 1 else f"{self._bad:,} lines"
        return (
            f"{what} of {self.file.name} left out as bad, the first of them {self._first_bad}.",
        )

    def bad(self, number: int, what: str) -> None:
        """Raises a DataError about a line, or counts it if bad lines are skipped."""
        if not self._skip_bad:
            raise DataError(
                f"Line {number} of {self.file} cannot be right: {what}; "
                "--skip-bad leaves such lines out."
            )
        self._first_bad = self._first_bad or f"line {number}: {what}"
        self._bad += 1

    def lines(self) -> Iterator[tuple[int, str]]:
        """Every line as text, with its number from 1."""
        for first, block in self._blocks():
            try:
                lines = block.decode(self.encoding).split("\n")
            except UnicodeDecodeError:
                yield from self._one_by_one(first, block)
            else:
                lines.pop()  # what follows the last line's end
                yield from enumerate(lines, first)

    def matching(
        self, pattern: re.Pattern[bytes], what_is_wrong: Callable[[str], str], header: bytes = b""
    ) -> Iterator[bytes]:
        """Blocks of right lines alone; `pattern` matches as many of them, with ends, as there are.

        header: what the first line must be, if the file has one; it is not given back.
        """
        for first, block in self._blocks():
            right, at = [], 0
            if first == 1 and header:
                at = block.index(b"\n") + 1
                if block[: at - 1] != header:
                    raise DataError(
                        f"Line 1 of {self.file} is {shown(block[: at - 1])}, but must be "
                        f"{header.decode()!r}: it is another file."
                    )
            while at < len(block):
                match = pattern.match(block, at)
                assert match is not None  # it matches no line at all, if need be
                if match.end() > at:
                    right.append(block[at : match.end()])
                at = match.end()
                if at < len(block):
                    end = block.index(b"\n", at)
                    number = first + block.count(b"\n", 0, at)
                    for _, line in self._one_by_one(number, block[at : end + 1]):
                        self.bad(number, what_is_wrong(line))
                    at = end + 1
            yield b"".join(right)

    def _one_by_one(self, first: int, block: bytes) -> Iterator[tuple[int, str]]:
        """The lines of a block that can be decoded; the others are bad."""
        for number, line in enumerate(block.split(b"\n")[:-1], first):
            try:
                text = line.decode(self.encoding)
            except UnicodeDecodeError as error:
                byte = line[error.start]
                self.bad(number, f"byte {error.start + 1} is 0x{byte:02x}, not {self.encoding}")
            else:
                yield number, text

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """Whole lines, many at a time, all ending in \\n, and the number of the first of them."""
        number, rest = 1, b""
        with ExitStack() as stack:
            try:
                file = self._open(stack)
            except FileNotFoundError:
                raise DataError(f"There is no file {self.file}.") from None
            except _DAMAGE as error:
                raise self._damaged(error) from error
            while True:
                try:
                    piece = file.read(PIECE)
                except _DAMAGE as error:
                    raise self._damaged(error) from error
                if not piece:
                    break
                rest += piece
                cut = rest.rfind(b"\n") + 1
                if cut:
                    block = rest[:cut].replace(b"\r\n", b"\n")
                    yield number, block
                    number += block.count(b"\n")
                    rest = rest[cut:]
                if len(rest) > LONGEST:
                    raise DataError(
                        f"Line {number} of {self.file} has no end within {LONGEST:,} bytes: "
                        "it is another file."
                    )
            if rest:
                yield number, rest.removesuffix(b"\r") + b"\n"
            elif number == 1:
                raise DataError(f"{self.file} is empty.")

    def _open(self, stack: ExitStack) -> _Stream:
        if self.file.suffix == ".gz":
            return stack.enter_context(gzip.open(self.file))
        if self.file.suffix != ".zip":
            return stack.enter_context(self.file.open("rb"))
        archive = stack.enter_context(zipfile.ZipFile(self.file))
        matches = [name for name in archive.namelist() if Path(name).name == self._member]
        if len(matches) != 1:
            members = ", ".join(archive.namelist()[:5]) or "nothing"
            raise DataError(
                f"{self.file} has {len(matches)} members called {self._member}, but must have one: "
                f"it holds {members}."
            )
        return stack.enter_context(archive.open(matches[0]))

    def _damaged(self, error: Exception) -> DataError:
        why = str(error).rstrip(".") or type(error).__name__
        return DataError(
            f"{self.file} cannot be read to its end ({why}): if it is damaged, get it anew."
        )


def shown(value: str | bytes) -> str:
    """A value as a sentence quotes it, cut if it is long."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return repr(text) if len(text) <= SHOWN else f"{text[:SHOWN]!r}…"
