"""Taobao's log in two forms: pairs of user and item, labels, splits, bad lines."""

import gzip
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedrows.data.examples import Examples
from fedrows.data.federation import FederatedData
from fedrows.datasets import taobao
from fedrows.datasets.taobao import DAY, END, START, TaobaoOptions
from fedrows.errors import DataError
from fedrows.measure.trivial_baselines import baselines

ALL = TaobaoOptions(user_share=1.0, test_share=0.0, validation=0.0)
HEADER = "user,item,behavior,split\n"
BUY_CART = (
    "8,10,buy,train\n8,11,cart,train\n8,12,buy,test\n8,10,cart,train\n8,12,cart,train\n"
    "5,13,buy,train\n5,14,cart,train\n5,11,buy,test\n"
)
OFFICIAL = (
    f"2,30,1,pv,{START + 5}\n"
    f"2,20,1,cart,{START}\n"
    f"2,20,1,buy,{START + 9}\n"
    f"2,40,1,fav,{START + 9}\n"
    f"2,30,1,cart,{START + 9}\n"
    f"2,30,1,buy,{END - DAY}\n"
    f"9,50,1,cart,{END - DAY - 1}\n"
    f"9,60,1,cart,{END - 1}\n"
    f"9,70,1,buy,{END}\n"
    f"9,70,1,buy,-1\n"
)
WHOLE = {"buy-cart": HEADER + BUY_CART, "official": OFFICIAL}


def made(folder: Path, form: str, text: str | bytes) -> Path:
    """A file of some form: the official one in a zip, as it is published."""
    file = folder / taobao.FORMS[form][0]
    raw = text if isinstance(text, bytes) else text.encode()
    if form == "buy-cart":
        file.write_bytes(gzip.compress(raw))
    else:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("UserBehavior.csv", raw)
            archive.writestr("__MACOSX/._UserBehavior.csv", b"\0")
    return file


def rows(data: FederatedData, examples: Examples) -> list[tuple[int, int, int]]:
    """User, item and label of every example, in the file's own numbers."""
    user, item = examples.ids["user"], examples.ids["item"]
    assert isinstance(user, torch.Tensor)
    assert isinstance(item, torch.Tensor)
    own = (
        data.vocabulary[name][x.numpy()].tolist() for name, x in (("user", user), ("item", item))
    )
    return list(zip(*own, map(int, examples.label), strict=True))


def test_a_pair_is_positive_if_it_was_bought_and_stands_once(tmp_path: Path) -> None:
    data = taobao.read(made(tmp_path, "buy-cart", WHOLE["buy-cart"]), "buy-cart", ALL)
    assert rows(data, data.train) == [
        (5, 11, 1),
        (5, 13, 1),
        (5, 14, 0),
        (8, 10, 1),  # in the cart as well
        (8, 11, 0),
        (8, 12, 1),
    ]
    assert data.client_names is not None
    assert data.client_names.tolist() == [5, 8]
    assert data.tables == {"user": 2, "item": 5, "list": taobao.LISTS}
    assert data.train.ids["list"].tolist() == [5] * 6  # three pairs each: 2 + 2 · log₂ 3, down
    assert data.target == ("item", None)
    assert data.local == {"user"}
    assert len(data.test) == len(data.validation) == 0


def test_a_share_of_the_pairs_is_held_out(tmp_path: Path) -> None:
    text = HEADER + "".join(f"{u},{i},buy,train\n" for u in range(20) for i in range(10))
    file = made(tmp_path, "buy-cart", text)
    one, same, other = (
        taobao.read(file, "buy-cart", TaobaoOptions(seed=seed)) for seed in (3, 3, 4)
    )
    assert (len(one.train), len(one.validation), len(one.test)) == (144, 16, 40)
    for part in ("train", "validation", "test"):
        assert rows(one, getattr(one, part)) == rows(same, getattr(same, part))
        assert rows(one, getattr(one, part)) != rows(other, getattr(other, part))


def test_the_official_log_by_time(tmp_path: Path) -> None:
    data = taobao.read(made(tmp_path, "official", OFFICIAL), "official", ALL)
    # clicks and favourites make no pair; the last line about a pair says when it was
    assert rows(data, data.train) == [(2, 20, 1), (9, 50, 0)]
    assert rows(data, data.test) == [(2, 30, 1), (9, 60, 0)]
    assert data.notes[0] == (
        "2 lines of another time than 25 November to 3 December 2017 left out."
    )


def test_a_share_of_the_users_is_taken_whole(tmp_path: Path) -> None:
    text = "".join(f"{u},{i},1,buy,{START + i}\n" for u in range(500) for i in (u, u + 1, u + 2))
    file = made(tmp_path, "official", text)
    options = replace(ALL, user_share=0.2)
    one, same = (taobao.read(file, "official", options) for _ in range(2))
    other = taobao.read(file, "official", replace(options, seed=1))
    assert 70 < one.clients < 130
    assert one.sizes.unique().tolist() == [3]
    assert one.client_names is not None
    assert same.client_names is not None
    assert other.client_names is not None
    assert one.client_names.tolist() == same.client_names.tolist()
    assert one.client_names.tolist() != other.client_names.tolist()


def test_the_real_file_has_two_real_labels(data_folder: Path) -> None:
    file = data_folder / "taobao" / "taobao_buy_cart.csv.gz"
    data = taobao.read(file, "buy-cart", TaobaoOptions())
    examples = [len(part) for part in (data.train, data.validation, data.test)]
    assert sum(examples) == 414_327
    assert float(data.train.label.mean()) == pytest.approx(0.627, abs=0.001)
    assert data.heat_over_all()["item"].dispersion == 608
    found = baselines(data)
    assert found["client"]["test_auc"] == pytest.approx(0.70, abs=0.01)
    assert found["item"]["test_auc"] == pytest.approx(0.64, abs=0.01)
    assert found["both"]["test_auc"] == pytest.approx(0.73, abs=0.01)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("1,2,buy\n", "'1,2,buy' has 3 fields, not 4"),
        ("x,2,buy,train\n", "user 'x' is not a whole number"),
        ("1,-2,buy,train\n", "item '-2' is not a whole number"),
        ("1,2,pv,train\n", "behavior 'pv' is not buy or cart"),
        ("1,2,buy,valid\n", "split 'valid' of a buy is not train or test"),
        ("1,2,cart,test\n", "split 'test' of a cart is not train"),
        ("1,2,caf\N{LATIN SMALL LETTER E WITH ACUTE},train\n", "behavior 'café' is not"),
    ],
)
def test_a_bad_line_of_the_buy_cart_file_is_named_or_skipped(
    tmp_path: Path, line: str, said: str
) -> None:
    file = made(tmp_path, "buy-cart", WHOLE["buy-cart"] + line + BUY_CART)
    check_bad(file, "buy-cart", said)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"1,2,3,{START}\n", "has 4 fields, not 5"),
        (f"1,2,3,click,{START}\n", "behavior 'click' is not one of pv, cart, fav, buy"),
        ("1,2,3,pv,noon\n", "timestamp 'noon' is not a whole number of seconds"),
        ("1,2,3,pv,\n", "timestamp '' is not a whole number of seconds"),
        (f"1,two,3,pv,{START}\n", "item 'two' is not a whole number"),
        (f"1,2,,pv,{START}\n", "category '' is not a whole number"),
        (f"1234567890,2,3,pv,{START}\n", "user '1234567890' is not a whole number of at most 9"),
        ("user,item,category,behavior,timestamp\n", "user 'user' is not a whole number"),
    ],
)
def test_a_bad_line_of_the_official_file_is_named_or_skipped(
    tmp_path: Path, line: str, said: str
) -> None:
    check_bad(made(tmp_path, "official", OFFICIAL + line + OFFICIAL), "official", said)


def check_bad(file: Path, form: str, said: str) -> None:
    number = WHOLE[form].count("\n") + 1
    with pytest.raises(DataError) as failure:
        taobao.read(file, form, ALL)
    assert f"Line {number} of {file} cannot be right: " in str(failure.value)
    assert said in str(failure.value)
    data = taobao.read(file, form, replace(ALL, skip_bad=True))
    assert (
        f"1 line of {file.name} left out as bad, the first of them line {number}: "
        in (data.notes[0])
    )


def test_a_file_that_is_not_it_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"There is no file "):
        taobao.read(tmp_path / "none.zip", "official", ALL)
    for form in WHOLE:
        with pytest.raises(DataError, match=r" is empty\."):
            taobao.read(made(tmp_path, form, ""), form, ALL)
    with pytest.raises(
        DataError, match=r"Line 1 of .* is '8,10,buy,train', but must be 'user,item"
    ):
        taobao.read(made(tmp_path, "buy-cart", BUY_CART), "buy-cart", ALL)
    with pytest.raises(DataError, match=r"not a single line in .* a cart or a purchase that can"):
        taobao.read(made(tmp_path, "buy-cart", HEADER), "buy-cart", ALL)
    with pytest.raises(DataError, match=r"not a single line in .* a cart or a purchase that can"):
        taobao.read(made(tmp_path, "official", "?\n"), "official", replace(ALL, skip_bad=True))
    with pytest.raises(DataError, match=r"byte 3 is 0xff, not utf-8"):
        taobao.read(made(tmp_path, "official", b"1,\xff\n"), "official", ALL)
    page = tmp_path / "UserBehavior.csv.zip"
    page.write_text("<html>Sign in</html>")
    with pytest.raises(DataError, match=r"cannot be read to its end \(File is not a zip file\)"):
        taobao.read(page, "official", ALL)
    with zipfile.ZipFile(page, "w") as archive:
        archive.writestr("other.csv", OFFICIAL)
        archive.writestr("readme.txt", "")
    with pytest.raises(
        DataError, match=r"has 0 members called UserBehavior\.csv, .*other\.csv, re"
    ):
        taobao.read(page, "official", ALL)
    with zipfile.ZipFile(page, "w") as archive:
        archive.writestr("a/UserBehavior.csv", OFFICIAL)
        archive.writestr("b/UserBehavior.csv", OFFICIAL)
    with pytest.raises(
        DataError, match=r"has 2 members called UserBehavior\.csv, but must have on"
    ):
        taobao.read(page, "official", ALL)


def test_the_file_that_is_there_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDROWS_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"UserBehavior\.csv\.zip: run `fedrows data fetch taobao`"):
        taobao.load(ALL)
    (tmp_path / "taobao").mkdir()
    for form, clients in (("buy-cart", [5, 8]), ("official", [2, 9])):
        made(tmp_path / "taobao", form, WHOLE[form])
        names = taobao.load(ALL).client_names
        assert names is not None
        assert names.tolist() == clients
    (tmp_path / "taobao" / "UserBehavior.csv").write_text(OFFICIAL)
    (tmp_path / "taobao" / "UserBehavior.csv.zip").unlink()
    assert taobao.load(replace(ALL, form="official")).clients == 2
