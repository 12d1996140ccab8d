"""What a release promises: bounded and locked requirements, checksums, and a check of all of it."""

import hashlib
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import check_release
import pytest

from fedrows import catalogue

ROOT = Path(__file__).parent.parent
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


def test_build_requirements_have_upper_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = project["build-system"]["requires"] + project["dependency-groups"]["release"]
    assert [line for line in asked if not re.fullmatch(r"[\w-]+>=[\d.]+,<\d+", line)] == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_every_locked_package_has_a_hash_and_the_pinned_version(lock: Path) -> None:
    blocks = re.split(r"^(?=[A-Za-z])", lock.read_text(), flags=re.MULTILINE)[1:]
    assert blocks
    for block in blocks:
        assert re.match(r"[\w.-]+==\S+ .*\\\n    --hash=sha256:[0-9a-f]{64}\b", block), block
    assert not any("://" in block for block in blocks)  # no registry by name
    locked = check_release.pins_of(lock.read_text())
    pins = check_release.pins_of((ROOT / "constraints.txt").read_text())
    assert {
        name: pins[name] for name in locked.keys() & pins.keys() if pins[name] - locked[name]
    } == {}


def test_the_lock_has_every_pin_but_torch_and_its_gpu() -> None:
    locked = check_release.pins_of((ROOT / "requirements" / "dev.txt").read_text())
    pins = check_release.pins_of((ROOT / "constraints.txt").read_text())
    assert pins.keys() - locked.keys() == {"torch"}
    assert [name for name in locked if re.match(r"torch$|triton|nvidia|cuda", name)] == []


def test_checksums_of_data_are_sha_256() -> None:
    sources = [catalogue.task(name).source for name in catalogue.built_in("task")]
    checksums = {source.checksum for source in sources if source and source.checksum}
    assert len(checksums) == 2
    assert all(re.fullmatch("[0-9a-f]{64}", checksum) for checksum in checksums)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of what the check of a release reads."""
    for name in ("pyproject.toml", "CITATION.cff", "CHANGELOG.md", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    (tmp_path / "fedrows").mkdir()
    shutil.copy(ROOT / "fedrows" / "version.py", tmp_path / "fedrows")
    version = check_release.version_of(ROOT)
    changes = (tmp_path / "CHANGELOG.md").read_text()
    head = f"## [{version}] - 2026-01-31"
    (tmp_path / "CHANGELOG.md").write_text(changes.replace("## [Unreleased]", head))
    return tmp_path


def test_a_release_with_everything_in_order_has_no_problem(copy: Path) -> None:
    assert list(check_release.problems(copy, check_release.version_of(copy))) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "wanted"),
    [
        ("fedrows/version.py", "0.", "9.", "fedrows/version.py does not say"),
        ("CITATION.cff", "\nversion: ", "\nversion: 9", "CITATION.cff does not say"),
        ("CHANGELOG.md", " - 2026-01-31", "", "CHANGELOG.md has no section"),
        ("requirements/dev.txt", "\nclick==", "\nclick==9", "dev.txt has another click"),
    ],
)
def test_a_release_that_is_not_ready_says_why(
    copy: Path, file: str, old: str, new: str, wanted: str
) -> None:
    text = (copy / file).read_text()
    assert old in text
    (copy / file).write_text(text.replace(old, new, 1))
    [problem] = check_release.problems(copy, check_release.version_of(copy))
    assert wanted in problem


def test_a_checkout_with_changes_a_tag_and_no_key_is_not_released(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=n", "-c", "user.email=e", "-c", "tag.gpgsign=false"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    git("config", "user.signingkey", "")
    git("commit", "--allow-empty", "-m", "begin")
    assert [x.split(":")[0] for x in check_release.state_of_git(tmp_path, "1.0")] == [
        "git has no user.signingkey"
    ]
    git("config", "user.signingkey", "ABCD")
    assert list(check_release.state_of_git(tmp_path, "1.0")) == []
    git("tag", "v1.0")
    (tmp_path / "new").write_text("")
    first, second = check_release.state_of_git(tmp_path, "1.0")
    assert "has changes" in first
    assert "a tag v1.0 already" in second


def test_the_sums_are_those_of_the_files(tmp_path: Path) -> None:
    for name in ("a.whl", check_release.SBOM):
        (tmp_path / name).write_text(name)
    check_release.write_sums(tmp_path, ["a.whl"])
    lines = (tmp_path / check_release.SUMS).read_text().splitlines()
    assert lines[0] == f"{hashlib.sha256(b'a.whl').hexdigest()}  a.whl"
    assert [line.split("  ")[1] for line in lines] == ["a.whl", check_release.SBOM]
