"""`fedrows deploy policy`, and what else on the command line speaks of a node's policy."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("flwr")

from fedrows.cli import main
from fedrows.cli.deploy_policy import CLEAR, node_files
from fedrows.errors import FedrowsError
from fedrows.flower.node.policy import NodePolicy, PolicyError, digest_of, read_policy
from fedrows.flower.wire.signing import own_key, write_peers
from fedrows.privacy.options import Privacy


def fedrows(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(words.split())
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_policy_is_written_with_the_flags_that_were_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peers, out = tmp_path / "peers.json", tmp_path / "policy.toml"
    write_peers(peers, {"a": own_key(tmp_path / "a").public})
    words = f"deploy policy --out {out} --peers {peers} --task shop --index-epsilon none"
    code, said, _ = fedrows(f"{words} --rounds-per-day 24 --threshold 0.8", capsys)
    assert (code, said) == (0, f"{out}\n")
    assert read_policy(out) == NodePolicy(
        task="shop", peers=digest_of(peers), index_epsilon=None, rounds_per_day=24, threshold=0.8
    )
    assert out.stat().st_mode & 0o777 == 0o600


def test_a_policy_that_is_there_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "policy.toml"
    out.write_text("rounds-per-day = 7\n", "utf-8")
    code, _, error = fedrows(f"deploy policy --out {out}", capsys)
    assert code == 2
    assert f"{out} is there already: move it away" in error
    assert out.read_text("utf-8") == "rounds-per-day = 7\n"


def test_without_a_file_to_write_it_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    code, said, _ = fedrows("deploy policy", capsys)
    assert code == 0
    assert said == NodePolicy().text()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--min-contributors 0", "min-contributors is 0, but must be at least 1."),
        ("--min-contributors many", "min-contributors is 'many', but must be a whole number."),
        ("--privacy secret", "privacy is 'secret', but must be one of clear, heat, index, full."),
        ("--peers none.json", "none.json is no list of node keys"),
        ("--out no/such/folder/policy.toml", "policy.toml cannot be written"),
    ],
)
def test_what_cannot_be_written_is_refused(
    words: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, error = fedrows(f"deploy policy {words}", capsys)
    assert code == 2
    assert why in error


def test_explain_shows_the_policy_of_a_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "privacy explain synthetic --clients 40 --clients-per-round 8 --privacy index"
    code, said, _ = fedrows(words, capsys)
    assert code == 0
    assert "(the default of a node with peers):\n  privacy: index\n" in said
    assert "  threshold: 0.6667\n" in said
    out = tmp_path / "policy.toml"
    out.write_text(NodePolicy(min_contributors=7).text(), "utf-8")
    code, said, _ = fedrows(f"{words} --policy {out}", capsys)
    assert code == 0
    assert f"({out}):" in said
    assert "  min-contributors: 7\n" in said
    code, _, error = fedrows(f"{words} --policy {tmp_path / 'none'}", capsys)
    assert code == 2
    assert "cannot be read" in error


def test_a_node_checks_its_files_and_says_that_it_is_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peers, policy = tmp_path / "peers.json", tmp_path / "policy.toml"
    write_peers(peers, {"a": own_key(tmp_path / "a").public})
    policy.write_text(NodePolicy().text(), "utf-8")
    assert node_files({"peers": None, "policy": None}) == {}
    assert capsys.readouterr().out.strip() == CLEAR
    found = node_files({"peers": str(peers), "policy": str(policy)})
    assert found == {"peers": str(peers), "policy": str(policy)}
    assert capsys.readouterr().out == ""
    policy.write_text("privacy = 3\n")
    with pytest.raises(FedrowsError, match="privacy is 3, but must be text"):
        node_files({"peers": str(peers), "policy": str(policy)})


def test_numbers_of_examples_are_told_where_the_policy_allows_it() -> None:
    clear, index = Privacy.of("clear"), Privacy.of("index")
    for policy in (NodePolicy(), NodePolicy.open()):
        policy.check_weighting(index, "uniform")
        policy.check_weighting(clear, "examples")  # where `privacy` allows it, rows are shown too
    NodePolicy(weighting="examples").check_weighting(index, "examples")
    with pytest.raises(PolicyError, match=r"weighting is examples, .* asks for uniform"):
        NodePolicy().check_weighting(index, "examples")
