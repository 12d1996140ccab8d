"""Data sets: MovieLens in its official format, and made-up examples with a known answer."""

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedrows.data.federation import FederatedData
from fedrows.datasets import movielens, synthetic
from fedrows.errors import DataError, PlanError
from fedrows.models import logistic

USERS = "1::F::1::10::48067\n2::M::56::16::70072\n4::M::25::15::55117\n"
RATINGS = "1::1193::5::978300760\n1::661::3::978302109\n2::1193::4::978298413\n4::9::1::978220179\n"
SMALL = synthetic.SyntheticOptions(clients=300, items=40, examples_per_client=20.0)


def made(folder: Path, users: str | None = USERS, ratings: str | None = RATINGS) -> Path:
    """A zip in the official layout."""
    file = folder / "ml-1m.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ml-1m/README", "Zip-codes, ratings and titles such as Amélie.")
        if users is not None:
            archive.writestr("ml-1m/users.dat", users.encode("latin-1"))
        if ratings is not None:
            archive.writestr("ml-1m/ratings.dat", ratings.encode("latin-1"))
    return file


def all_in_train(file: Path) -> FederatedData:
    return movielens.read(file, movielens.MovieLensOptions(test_share=0.0))


def test_movielens_rows_are_gender_age_movie_and_their_products(tmp_path: Path) -> None:
    data = all_in_train(made(tmp_path))
    # movies 9, 661, 1193 → 0, 1, 2; genders F, M → 0, 1; ages 1, 25, 56 → 0, 2, 6
    assert data.groups["weight"] == {
        "gender": (0, 2),
        "age": (2, 9),
        "movie": (9, 12),
        "gender×movie": (12, 18),
        "age×movie": (18, 39),
    }
    assert data.tables == {"weight": 39}
    assert data.train.ids["features"].tolist() == [
        [0, 2, 11, 14, 20],  # user 1, F, 1, movie 1193
        [0, 2, 10, 13, 19],  # user 1, movie 661
        [1, 8, 11, 17, 38],  # user 2, M, 56, movie 1193
        [1, 4, 9, 15, 24],  # user 4, M, 25, movie 9
    ]
    assert data.train.label.tolist() == [1, 0, 1, 0]
    assert data.train.splits.tolist() == [0, 2, 3, 4]
    assert data.targets(data.train).tolist() == [11, 10, 11, 9]
    assert data.client_names is not None
    assert data.client_names.tolist() == [1, 2, 4]


def test_movielens_holds_out_a_random_share(tmp_path: Path) -> None:
    users = "".join(f"{u}::M::25::0::0\n" for u in range(1, 11))
    ratings = "".join(f"{u}::{m}::4::0\n" for u in range(1, 11) for m in range(10))
    file = made(tmp_path, users, ratings)
    one = movielens.read(file, movielens.MovieLensOptions())
    assert (len(one.train), len(one.test)) == (80, 20)
    same = movielens.read(file, movielens.MovieLensOptions())
    other = movielens.read(file, movielens.MovieLensOptions(split_seed=1))
    assert torch.equal(one.test.ids["features"], same.test.ids["features"])
    assert not torch.equal(one.test.ids["features"], other.test.ids["features"])


def test_movielens_line_ends_may_differ(tmp_path: Path) -> None:
    file = made(tmp_path, USERS.replace("\n", "\r\n"), RATINGS.replace("\n", "\r\n").rstrip())
    assert len(all_in_train(file).train) == 4


@pytest.mark.parametrize(
    ("ratings", "said"),
    [
        ("1::661::3\n", "Line 5 of ml-1m/ratings.dat in {file} cannot be right: "
         "'1::661::3' has 3 fields, not 4."),
        ("1::661::3::4::5\n", "has 5 fields, not 4"),
        ("\n", "Line 5 of ml-1m/ratings.dat in {file} cannot be right: '' has 1 fields"),
        ("1::six::3::0\n", "movie 'six' is not a whole number"),
        ("1:: 661::3::0\n", "movie ' 661' is not a whole number"),
        ("é::661::3::0\n", "user 'é' is not a whole number"),
        ("1::661::6::0\n", "rating '6' is not from 1 to 5"),
        ("1::661::0::0\n", "rating '0' is not from 1 to 5"),
        ("1::9999999999::3::0\n", "'1::9999999999::3::0' has too large a number"),
        ("3::661::3::0\n", "Line 5 of ml-1m/ratings.dat in {file} cannot be right: "
         "user 3 is not in ml-1m/users.dat."),
        ("99::661::3::0\n", "user 99 is not in ml-1m/users.dat"),
    ],
)  # fmt: skip
def test_movielens_names_a_bad_rating(tmp_path: Path, ratings: str, said: str) -> None:
    file = made(tmp_path, ratings=RATINGS + ratings + "1::661::3::0\n")
    with pytest.raises(DataError) as failure:
        all_in_train(file)
    assert said.format(file=file) in str(failure.value)


@pytest.mark.parametrize(
    ("users", "said"),
    [
        ("5::F::25::1\n", "'5::F::25::1' has 4 fields, not 5"),
        ("five::F::25::1::0\n", "user 'five' is not a whole number"),
        ("5::X::25::1::0\n", "gender 'X' is not F or M"),
        ("5::F::26::1::0\n", "age '26' is not one of 1, 18, 25"),
    ],
)
def test_movielens_names_a_bad_user(tmp_path: Path, users: str, said: str) -> None:
    file = made(tmp_path, users=USERS + users)
    with pytest.raises(DataError) as failure:
        all_in_train(file)
    assert f"Line 4 of ml-1m/users.dat in {file}" in str(failure.value)
    assert said in str(failure.value)


def test_movielens_names_a_file_that_is_not_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"There is no file .*none\.zip"):
        all_in_train(tmp_path / "none.zip")
    with pytest.raises(DataError, match=r"ml-1m\.zip has no member ml-1m/ratings\.dat"):
        all_in_train(made(tmp_path, ratings=None))
    with pytest.raises(DataError, match=r"has no member ml-1m/users\.dat"):
        all_in_train(made(tmp_path, users=None))
    with pytest.raises(DataError, match=r"ml-1m/ratings\.dat in .* is empty"):
        all_in_train(made(tmp_path, ratings="\n"))
    file = made(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cannot be read from .*fetch movielens --force"):
        all_in_train(file)


def test_movielens_damaged_inside_is_refused(tmp_path: Path) -> None:
    file = made(tmp_path)
    whole = bytearray(file.read_bytes())
    at = whole.index(b"ml-1m/ratings.dat") + len("ml-1m/ratings.dat")
    whole[at + 8 : at + 24] = bytes(16)
    file.write_bytes(whole)
    with pytest.raises(DataError, match=r"ml-1m/ratings\.dat cannot be read"):
        all_in_train(file)


def test_movielens_that_was_never_fetched_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDROWS_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"movielens-1m/ml-1m\.zip: run `fedrows data fetch moviel"):
        movielens.load(movielens.MovieLensOptions())


@pytest.mark.slow
def test_movielens_real_file_has_the_papers_numbers(data_folder: Path) -> None:
    data = movielens.load(movielens.MovieLensOptions())
    assert data.clients == 6_040
    assert len(data.train) + len(data.test) == 1_000_209
    assert len(data.test) == 200_042
    assert int(data.train.label.sum() + data.test.label.sum()) == 575_281
    low, high = data.groups["weight"]["movie"]
    assert high - low == 3_706
    heat = data.heat_over_all()["weight"]
    assert heat.dispersion == 4_331
    assert heat.between(low, high).dispersion == 3_428


def test_synthetic_is_the_same_for_the_same_options() -> None:
    one, same, other = (synthetic.load(replace(SMALL, seed=s)) for s in (0, 0, 1))
    assert torch.equal(one.train.ids["features"], same.train.ids["features"])
    assert torch.equal(one.test.label, same.test.label)
    assert one.best_loss == same.best_loss
    assert one.train.ids["features"].shape != other.train.ids["features"].shape or not torch.equal(
        one.train.ids["features"], other.train.ids["features"]
    )


def test_synthetic_never_changes_between_versions() -> None:
    # Made once and written down: another machine or version must make the same examples.
    data = synthetic.load(SMALL)
    assert data.train.ids["features"][:3].tolist() == [[2, 3, 123], [2, 10, 130], [2, 27, 147]]
    assert data.best_loss == pytest.approx(0.533537587, abs=1e-8)


def test_synthetic_features_are_group_item_and_their_product() -> None:
    data = synthetic.load(SMALL)
    groups, items = SMALL.client_groups, SMALL.items
    group, item, both = data.train.ids["features"].T
    assert torch.equal(both, groups + items + group * items + (item - groups))
    assert data.groups["weight"] == {"group": (0, 3), "item": (3, 43), "group×item": (43, 163)}
    assert data.tables == {"weight": 163}
    for client in range(data.clients):  # a client is in one group
        low, high = data.train.splits[client], data.train.splits[client + 1]
        assert len(group[low:high].unique()) == 1


def test_synthetic_best_loss_is_that_of_the_truth() -> None:
    options = replace(SMALL, clients=2_000)
    data = synthetic.load(options)
    assert data.best_loss is not None
    model = logistic.build(data)
    scores = model.scores(synthetic.truth(options), data.test.ids)
    p = scores.sigmoid()
    entropy = -(p * p.log() + (1 - p) * (1 - p).log())
    assert data.best_loss == pytest.approx(float(entropy.mean()), abs=1e-12)
    losses = model.loss(scores, data.test.label.double())  # of the labels that were drawn
    error = float(losses.std()) / len(losses) ** 0.5
    assert abs(float(losses.mean()) - data.best_loss) < 4 * error
    for wrong in (0.7, 1.4):
        assert float(model.loss(wrong * scores, p).mean()) > data.best_loss


def test_synthetic_popularity_is_zipfs() -> None:
    data = synthetic.load(replace(SMALL, items=3, skew=1.0, clients=3_000, test_share=0.0))
    share = torch.bincount(data.train.ids["features"][:, 1] - 3).double() / len(data.train)
    assert share.tolist() == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.01)
    even = synthetic.load(replace(SMALL, items=4, skew=0.0, clients=3_000, test_share=0.0))
    share = torch.bincount(even.train.ids["features"][:, 1] - 3).double() / len(even.train)
    assert share.tolist() == pytest.approx([0.25] * 4, abs=0.01)


def test_synthetic_without_signal_is_as_good_as_its_base_rate() -> None:
    options = replace(SMALL, quality=0.0, taste=0.0, client_groups=1)
    data = synthetic.load(options)
    p = float(synthetic.truth(options).tables["weight"][0, 0] + synthetic.BIAS)
    p = 1 / (1 + np.exp(-p))
    assert data.best_loss == pytest.approx(-(p * np.log(p) + (1 - p) * np.log(1 - p)))


def test_synthetic_of_one_client_one_item_one_group() -> None:
    data = synthetic.load(replace(SMALL, clients=1, items=1, client_groups=1, test_share=0.0))
    assert data.clients == 1
    assert data.best_loss is None
    assert data.train.ids["features"].unique(dim=0).tolist() == [[0, 1, 2]]


def test_synthetic_default_has_hot_and_cold_items_and_heavy_tailed_clients() -> None:
    data = synthetic.load(synthetic.SyntheticOptions())
    low, high = data.groups["weight"]["item"]
    heat = data.heat()["weight"]
    assert heat.between(low, high).dispersion >= 1_000
    targets = data.targets(data.test).contiguous()
    cold = (heat.of(targets) < data.clients / 50).float().mean()
    assert 0.2 < cold < 0.6  # a good share of what is asked lies on items that few clients hold
    assert data.sizes.max() > 10 * data.sizes.double().mean()
    assert data.best_loss is not None
    assert 0.3 < data.best_loss < 0.6


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(PlanError, match="clients is 0, but must be at least 1"):
        synthetic.SyntheticOptions(clients=0)
    with pytest.raises(PlanError, match="test-share is 1"):
        movielens.MovieLensOptions(test_share=1.0)
