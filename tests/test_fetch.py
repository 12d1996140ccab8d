"""Fetching against a server on this machine: whatever goes wrong, no good file is harmed."""

import errno
import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedrows.errors import DataError
from fedrows.files.fetch import Source, data_folder, fetch, path, require

BODY = bytes(range(256)) * 1_000  # several pieces


class Handler(BaseHTTPRequestHandler):
    """Serves BODY in ways that depend on the path."""

    def do_GET(self) -> None:
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        if self.path != "/unannounced":
            self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        body = {"/short": BODY[:1_000], "/silent": b""}.get(self.path, BODY)
        self.wfile.write(body)
        self.wfile.flush()
        if self.path == "/silent":
            stop.wait(5)

    def log_message(self, format: str, *args: object) -> None:
        pass


stop = threading.Event()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of the server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        stop.set()
        running.shutdown()
        thread.join()


@pytest.fixture
def source(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """A file that can be fetched, into an empty data folder."""
    monkeypatch.setenv("FEDROWS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("no_proxy", "*")
    return Source(
        name="toy",
        url=f"{server}/good",
        file="toy.zip",
        folder="toys",
        licence="None.",
        size=len(BODY),
        checksum=hashlib.sha256(BODY).hexdigest(),
    )


def refused(source: Source, *said: str, **how: float) -> None:
    """Checks that fetching fails with a sentence that has these words, and leaves no litter."""
    place = path(source)
    before = place.read_bytes() if place.exists() else None
    with pytest.raises(DataError) as failure:
        fetch(source, force=True, **how)  # type: ignore[arg-type]
    for words in (*said, str(place)):
        assert words in str(failure.value)
    assert (place.read_bytes() if place.exists() else None) == before
    if place.parent.is_dir():
        assert set(place.parent.iterdir()) <= {place}


def test_a_file_arrives_whole_with_progress(source: Source) -> None:
    seen: list[tuple[int, int | None]] = []
    got = fetch(source, lambda done, total: seen.append((done, total)))
    assert got.path == path(source) == data_folder() / "toys" / "toy.zip"
    assert got.note is None
    assert got.path.read_bytes() == BODY
    assert list(got.path.parent.iterdir()) == [got.path]
    assert seen[-1] == (len(BODY), len(BODY))
    assert len(seen) > 1
    assert seen == sorted(seen)
    assert os.stat(got.path).st_mode & 0o444 == 0o444


def test_without_an_announced_length_the_published_size_is_the_total(source: Source) -> None:
    totals: set[int | None] = set()
    source = replace(source, url=source.url.replace("good", "unannounced"))
    fetch(source, lambda _, total: totals.add(total))
    assert totals == {len(BODY)}


def test_a_good_file_is_not_fetched_again(source: Source) -> None:
    fetch(source)
    nowhere = replace(source, url="http://127.0.0.1:9/good")
    assert fetch(nowhere).note is None
    assert fetch(replace(nowhere, checksum=None)).note is None


def test_another_file_is_kept_and_said_until_forced(source: Source) -> None:
    path(source).parent.mkdir(parents=True)
    path(source).write_bytes(b"mine")
    got = fetch(source)
    assert got.path.read_bytes() == b"mine"
    assert got.note is not None
    assert hashlib.sha256(b"mine").hexdigest() in got.note
    assert fetch(source, force=True).note is None
    assert path(source).read_bytes() == BODY


@pytest.mark.parametrize("there", [False, True])
def test_what_goes_wrong_is_said_and_harms_nothing(source: Source, there: bool) -> None:
    if there:
        fetch(source)
    base = source.url.removesuffix("/good")
    refused(replace(source, checksum="0" * 64), "its SHA-256 is", "not the published " + "0" * 64)
    refused(replace(source, url=f"{base}/short"), "1000", "by hand")
    refused(replace(source, url=f"{base}/missing"), "the server answered 404", "by hand")
    refused(replace(source, url="http://127.0.0.1:9/good"), "connection refused", "by hand")
    refused(replace(source, url=f"{base}/silent"), "no answer in time", timeout=0.2)
    refused(replace(source, url="nonsense"), "unknown url type")


def test_a_full_disk_is_said(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def write(self, piece: bytes) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def __enter__(self) -> "Full":
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(Path, "open", lambda self, mode: Full())
    refused(source, "no space left on device", "FEDROWS_DATA")


def test_a_folder_that_cannot_be_made_is_said(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("FEDROWS_DATA", str(tmp_path / "file"))
    refused(source, "could not be written", "FEDROWS_DATA")


def test_an_interrupted_fetch_leaves_nothing(source: Source) -> None:
    def stop_now(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(source, stop_now)
    assert list(path(source).parent.iterdir()) == []


def test_require_says_how_to_get_the_file(source: Source) -> None:
    with pytest.raises(DataError, match="fedrows data fetch toy") as failure:
        require(source)
    assert str(path(source)) in str(failure.value)
    fetch(source)
    assert require(source) == path(source)


def test_the_data_folder_is_chosen_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FEDROWS_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert data_folder() == tmp_path / ".cache" / "fedrows"
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert data_folder() == Path("/cache/fedrows")
    monkeypatch.setenv("FEDROWS_DATA", "~/data")
    assert data_folder() == tmp_path / "data"
