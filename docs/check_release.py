"""Builds a release into dist/ and checks it: `make release-check`. It publishes and signs nothing.

It ends with the commands that are left to whoever holds the key.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SUMS, SBOM = "SHA256SUMS", "sbom.cdx.json"


def main() -> int:
    """Checks, builds, and says what is left to do; gives the exit code."""
    version = version_of(ROOT)
    wrong = [*problems(ROOT, version), *state_of_git(ROOT, version)]
    for problem in wrong:
        print(f"release-check: {problem}", file=sys.stderr)
    if wrong:
        return 1
    build(ROOT)
    write_sums(ROOT / "dist", [f"fedrows-{version}.tar.gz", f"fedrows-{version}-py3-none-any.whl"])
    print(f"dist/ has fedrows {version}, its list of packages and {SUMS}. What is left:")
    print(f"  git tag -s v{version} -m 'fedrows {version}'")
    print(f"  git verify-tag v{version}")
    print(f"  gpg --detach-sign --armor dist/{SUMS}")
    print(f"  git push origin v{version}")
    return 0


def version_of(root: Path) -> str:
    """The version that pyproject.toml states."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def problems(root: Path, version: str) -> Iterator[str]:
    """What is wrong with the files of a release."""
    for file, line in (
        ("fedrows/version.py", f'__version__ = "{version}"'),
        ("CITATION.cff", f"version: {version}"),
    ):
        text = (root / file).read_text(encoding="utf-8")
        if line not in [one.partition("  #")[0] for one in text.splitlines()]:
            yield f"{file} does not say {line}: write it there."
    if not re.search(
        rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$",
        (root / "CHANGELOG.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    ):
        yield f"CHANGELOG.md has no section [{version}] with a date: rename [Unreleased] to it."
    pins = pins_of((root / "constraints.txt").read_text(encoding="utf-8"))
    for lock in sorted((root / "requirements").glob("*.txt")):
        locked = pins_of(lock.read_text(encoding="utf-8"))
        for name in sorted(locked.keys() & pins.keys()):
            if pins[name] - locked[name]:
                yield f"{lock.name} has another {name} than constraints.txt: call make lock."


def pins_of(text: str) -> dict[str, set[str]]:
    """The versions that a file of requirements pins, by package; several if they have markers."""
    pins: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.MULTILINE):
        pins.setdefault(re.sub(r"[-_.]+", "-", name).lower(), set()).add(version)
    return pins


def state_of_git(root: Path, version: str) -> Iterator[str]:
    """What is wrong with the checkout."""
    if _git(root, "status", "--porcelain"):
        yield "the working tree has changes: commit them, or put them aside."
    if _git(root, "tag", "--list", f"v{version}"):
        yield f"there is a tag v{version} already: raise the version."
    if not _git(root, "config", "--get", "user.signingkey"):
        yield "git has no user.signingkey: tags are signed, so configure one."


def build(root: Path) -> None:
    """Builds sdist and wheel; the same commit gives the same bytes."""
    when = _git(root, "log", "-1", "--format=%ct")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", "."],
        cwd=root,
        env=os.environ | {"SOURCE_DATE_EPOCH": when},
        check=True,
        stdout=subprocess.DEVNULL,
    )


def write_sums(folder: Path, names: list[str]) -> None:
    """Writes the SHA-256 of what is released, as `sha256sum --check` reads it."""
    lines = []
    for name in [*names, SBOM]:
        with (folder / name).open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}\n")
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
