"""Sentiment140 in its official format and as a sample: tokens, clients, rows, bad lines."""

import gzip
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedrows.data.federation import FederatedData
from fedrows.datasets import sent140
from fedrows.datasets.sent140 import Sent140Options, tokens_of
from fedrows.errors import DataError, PlanError
from fedrows.rows.ragged import Ragged

ALL = Sent140Options(fewest_tweets=1, test_share=0.0)


def row(polarity: str, user: str, text: str) -> str:
    return (
        f'"{polarity}","1467810369","Mon Apr 06 22:19:45 PDT 2009","NO_QUERY","{user}","{text}"\n'
    )


TWEETS = row("0", "ann", "No no café") + row("4", "bob", "café, yes!") + row("4", "ann", "yes")


def official(folder: Path, text: str = TWEETS, member: str = sent140.MEMBER) -> Path:
    """A zip in the official layout."""
    file = folder / "trainingandtestdata.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("testdata.manual.2009.06.14.csv", row("2", "x", "neutral"))
        archive.writestr(member, text.encode("latin-1"))
    return file


def sample(folder: Path, text: str | bytes) -> Path:
    file = folder / "sentiment140_ge30_sample.csv.gz"
    file.write_bytes(gzip.compress(text if isinstance(text, bytes) else text.encode()))
    return file


def lists(data: FederatedData) -> list[list[int]]:
    tokens = data.train.ids["tokens"]
    assert isinstance(tokens, Ragged)
    return [part.tolist() for part in torch.split(tokens.values, tokens.sizes.tolist())]


@pytest.mark.parametrize(
    ("tweet", "tokens"),
    [
        ("Good MORNING", ["good", "morning"]),
        ("@Ann_1 see http://bit.ly/x?y=1 or www.a.org now",
         ["<name>", "see", "<link>", "or", "<link>", "now"]),
        ("I don't, won’t!! why?", ["i", "don't", "won’t", "!", "!", "why", "?"]),
        ("Tom &amp; &quot;Jerry&quot; #tbt :-) ;)", ["tom", "jerry", "tbt"]),
        ("naïve 2day", ["naïve", "2day"]),
        (" ... :( ", []),
    ],
)  # fmt: skip
def test_tokens(tweet: str, tokens: list[str]) -> None:
    assert tokens_of(tweet) == tokens


def test_official_file_gives_clients_rows_and_labels(tmp_path: Path) -> None:
    data = sent140.read(official(tmp_path), "official", ALL)
    # no, café and yes twice each, then !: rows 2, 3, 4, 5 from frequent to rare, then by alphabet
    assert data.vocabulary["token"].tolist() == ["<unknown>", "café", "no", "yes", "!"]
    assert data.tables == {"token": 6}
    assert data.client_names is not None
    assert data.client_names.tolist() == ["ann", "bob"]
    assert lists(data) == [[3, 3, 2], [4], [2, 4, 5]]
    assert data.train.label.tolist() == [0, 1, 1]
    assert data.target is None
    assert data.padded == {"token"}
    assert data.heat()["token"].ids.tolist() == [2, 3, 4, 5]
    assert data.notes == ()


def test_the_csv_alone_and_the_sample_are_read_the_same(tmp_path: Path) -> None:
    plain = tmp_path / sent140.MEMBER
    plain.write_bytes(TWEETS.encode("latin-1"))
    one = sent140.read(plain, "official", ALL)
    other = sent140.read(sample(tmp_path, TWEETS), "sample", ALL)
    assert lists(one) == lists(other) == lists(sent140.read(official(tmp_path), "official", ALL))


def test_quotes_and_commas_inside_a_tweet(tmp_path: Path) -> None:
    data = sent140.read(sample(tmp_path, row("4", "a", 'so ""good"", yes')), "sample", ALL)
    assert data.vocabulary["token"].tolist()[1:] == ["good", "so", "yes"]


def test_only_the_first_tokens_are_kept(tmp_path: Path) -> None:
    data = sent140.read(
        sample(tmp_path, row("4", "a", "b a c d")), "sample", replace(ALL, tokens=2)
    )
    assert data.vocabulary["token"].tolist() == ["<unknown>", "a", "b"]
    assert lists(data) == [[3, 2]]


def test_a_tweet_without_a_token_is_an_empty_list(tmp_path: Path) -> None:
    data = sent140.read(sample(tmp_path, row("4", "a", "...") + row("0", "a", "x")), "sample", ALL)
    assert lists(data) == [[], [2]]


@pytest.mark.parametrize(("form", "fewest"), [("official", 41), ("sample", 5)])
def test_clients_are_those_with_enough_tweets(tmp_path: Path, form: str, fewest: int) -> None:
    text = row("4", "enough", "x") * fewest + row("4", "few", "x") * (fewest - 1)
    file = official(tmp_path, text) if form == "official" else sample(tmp_path, text)
    data = sent140.read(file, form, Sent140Options())
    assert data.client_names is not None
    assert data.client_names.tolist() == ["enough"]
    assert len(data.train) + len(data.test) == fewest
    with pytest.raises(DataError, match=r"No user in .* has 50 tweets: choose a lower fewest-twe"):
        sent140.read(file, form, Sent140Options(fewest_tweets=50))


def test_a_random_share_is_held_out_the_same_for_the_same_seed(tmp_path: Path) -> None:
    text = "".join(row("4", f"user{n % 10}", f"w{n}") for n in range(100))
    file = sample(tmp_path, text)
    one, same, other = (
        sent140.read(file, "sample", Sent140Options(split_seed=s)) for s in (0, 0, 1)
    )
    assert (len(one.train), len(one.test)) == (80, 20)
    assert lists(one) == lists(same)
    assert one.vocabulary["token"].tolist() == same.vocabulary["token"].tolist()
    assert one.vocabulary["token"].tolist() != other.vocabulary["token"].tolist()


def test_words_that_training_lacks_or_has_rarely_share_a_row(tmp_path: Path) -> None:
    text = "".join(row("4", f"user{n % 2}", f"all w{n}") for n in range(20))
    data = sent140.read(sample(tmp_path, text), "sample", Sent140Options())
    assert data.tables == {"token": 2 + 17}  # all, and a word of each of 16 training tweets
    tokens = data.test.ids["tokens"]
    assert isinstance(tokens, Ragged)
    assert tokens.values.tolist() == [2, 1] * 4
    assert data.notes == (
        "4 of the test tweets' 8 tokens (50.0%) have no row of their own, and read the row for "
        "unknown ones.",
    )
    rare = sent140.read(sample(tmp_path, text), "sample", Sent140Options(min_count=2))
    assert rare.tables == {"token": 3}
    assert lists(rare) == [[2, 1]] * 16


def test_every_client_keeps_a_tweet_to_train_on(tmp_path: Path) -> None:
    text = "".join(row("4", f"user{n // 2}", "x") for n in range(200))
    options = Sent140Options(fewest_tweets=1, test_share=0.9)
    data = sent140.read(sample(tmp_path, text), "sample", options)
    assert data.clients == 100
    assert data.clients_without_training_data == 0
    assert len(data.test) <= 100


BAD = [
    ('"4","1","d","q","ann"\n', "has 5 columns, not 6"),
    ('"4","1","d","q","ann","hi","there"\n', "has 7 columns, not 6"),
    ('"4","1","d","q","ann","cut sho\n', "is no row of quoted columns (unexpected end of data)"),
    ("\n", "'' has 0 columns, not 6"),
    (row("2", "ann", "so so"), "polarity '2' is not 0 or 4"),
    (row("good", "ann", "so so"), "polarity 'good' is not 0 or 4"),
    (row("4", "", "so so"), "has no user"),
]


@pytest.mark.parametrize(("line", "said"), BAD)
def test_a_bad_line_is_named_or_skipped(tmp_path: Path, line: str, said: str) -> None:
    file = sample(tmp_path, TWEETS + line + TWEETS)
    with pytest.raises(DataError) as failure:
        sent140.read(file, "sample", ALL)
    assert f"Line 4 of {file} cannot be right: " in str(failure.value)
    assert said in str(failure.value)
    assert str(failure.value).endswith("; --skip-bad leaves such lines out.")
    data = sent140.read(file, "sample", replace(ALL, skip_bad=True))
    assert len(data.train) == 6
    assert f"1 line of {file.name} left out as bad, the first of them line 4: " in data.notes[0]


def test_text_in_another_encoding_is_named_or_skipped(tmp_path: Path) -> None:
    file = sample(tmp_path, TWEETS.encode("latin-1"))
    with pytest.raises(
        DataError, match=r"Line 1 of .* cannot be right: byte 76 is 0xe9, not utf-8"
    ):
        sent140.read(file, "sample", ALL)
    data = sent140.read(file, "sample", replace(ALL, skip_bad=True))
    assert len(data.train) == 1
    assert data.notes[0].startswith(f"2 lines of {file.name} left out as bad")


def test_a_file_that_is_not_it_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"There is no file .*none\.csv\."):
        sent140.read(tmp_path / "none.csv", "official", ALL)
    with pytest.raises(DataError, match=r"sample\.csv\.gz is empty"):
        sent140.read(sample(tmp_path, ""), "sample", ALL)
    strange = official(tmp_path, member="tweets.csv")
    with pytest.raises(DataError, match=r"has 0 members called training\.16.* it holds testdata\."):
        sent140.read(strange, "official", ALL)
    whole = gzip.compress(TWEETS.encode() * 1000)
    sample(tmp_path, "").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cannot be read to its end .* get it anew"):
        sent140.read(tmp_path / "sentiment140_ge30_sample.csv.gz", "sample", ALL)
    broken = official(tmp_path)
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(DataError, match=r"testdata\.zip cannot be read to its end"):
        sent140.read(broken, "official", ALL)


def test_the_file_that_is_there_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDROWS_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"trainingandtestdata\.zip: run `fedrows data fetch sent1"):
        sent140.load(ALL)
    folder = tmp_path / "sent140"
    folder.mkdir()
    sample(folder, TWEETS + TWEETS)
    assert len(sent140.load(ALL).train) == 6
    with pytest.raises(DataError, match=r"run `fedrows data fetch sent140`"):
        sent140.load(replace(ALL, form="official"))
    official(folder)
    assert len(sent140.load(ALL).train) == 3
    assert len(sent140.load(replace(ALL, form="sample")).train) == 6
    (folder / "sentiment140_ge30_sample.csv.gz").unlink()
    with pytest.raises(
        DataError, match=r"There is no file .*sample\.csv\.gz: put it there, or cho"
    ):
        sent140.load(replace(ALL, form="sample"))


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(PlanError, match="tokens is 0"):
        Sent140Options(tokens=0)
    with pytest.raises(PlanError, match="form is 'zip', but must be one of auto, official, sample"):
        Sent140Options(form="zip")


def test_the_sample_at_hand_has_its_numbers(data_folder: Path) -> None:
    file = data_folder / "sent140" / "sentiment140_ge30_sample.csv.gz"
    data = sent140.read(file, "sample", Sent140Options())
    assert data.clients == 1_473
    assert (len(data.train), len(data.test)) == (8_501, 2_124)
    assert data.tables == {"token": 11_283}
    assert data.heat_over_all()["token"].dispersion == 1_440
    assert data.vocabulary["token"][1:4].tolist() == ["<name>", "!", "i"]
    tokens = data.train.ids["tokens"]
    assert isinstance(tokens, Ragged)
    assert tokens.length == 30
    assert int(tokens.sizes.max()) == 30
    assert np.isin(1, tokens.values.numpy()) == np.False_
