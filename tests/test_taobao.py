"""Taobao's log in two forms: histories, negatives, splits, bad lines."""

import gzip
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedrows.data.examples import Examples
from fedrows.data.federation import FederatedData
from fedrows.datasets import taobao
from fedrows.datasets.taobao import DAY, END, START, TaobaoOptions
from fedrows.errors import DataError
from fedrows.rows.ragged import Ragged

ALL = TaobaoOptions(user_share=1.0)
HEADER = "user,item,behavior,split\n"
BUY_CART = (
    "8,10,buy,train\n8,11,cart,train\n8,12,buy,test\n8,10,cart,train\n8,12,cart,train\n"
    "5,13,buy,train\n5,14,buy,train\n5,15,buy,test\n"
)
OFFICIAL = (
    f"2,30,1,pv,{START + 5}\n"
    f"2,20,1,cart,{START}\n"
    f"2,20,1,buy,{START + 9}\n"
    f"2,40,1,fav,{START + 9}\n"  # the same second: the file's order counts
    f"2,30,1,buy,{END - DAY}\n"
    f"9,50,1,buy,{END - DAY - 1}\n"
    f"9,60,1,buy,{END - 1}\n"
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


def rows(data: FederatedData, examples: Examples) -> list[tuple[int, int, list[int], int]]:
    """User, item, history and label of every example, in the file's own numbers."""
    user, item, history = (examples.ids[name] for name in ("user", "item", "history"))
    assert isinstance(user, torch.Tensor)
    assert isinstance(item, torch.Tensor)
    assert isinstance(history, Ragged)
    users, items = data.vocabulary["user"], data.vocabulary["item"]
    lists = [
        items[part.numpy() - 1].tolist()
        for part in torch.split(history.values, history.sizes.tolist())
    ]
    labels = map(int, examples.label)
    own = users[user.numpy()].tolist(), items[item.numpy() - 1].tolist()
    return list(zip(*own, lists, labels, strict=True))


def test_purchases_carts_and_negatives(tmp_path: Path) -> None:
    data = taobao.read(made(tmp_path, "buy-cart", WHOLE["buy-cart"]), "buy-cart", ALL)
    assert data.client_names is not None
    assert data.client_names.tolist() == [5, 8]
    assert data.vocabulary["item"].tolist() == [10, 11, 12, 13, 14, 15]
    assert data.tables == {"user": 2, "item": 7}
    assert data.target == ("item", None)
    assert data.padded == {"item"}
    train, test = rows(data, data.train), rows(data, data.test)
    # 10 is bought in training by 8 alone, 13 and 14 by 5 alone: a negative is what the other bought
    assert train[:4] == [(5, 13, [], 1), (5, 10, [], 0), (5, 14, [], 1), (5, 10, [], 0)]
    assert train[4] == (8, 10, [11, 12], 1)  # the cart without 10 itself
    assert train[5] in [(8, 13, [11, 12], 0), (8, 14, [11, 12], 0)]
    assert test[:2] == [(5, 15, [], 1), (5, 10, [], 0)]
    assert test[2] == (8, 12, [11, 10], 1)
    assert test[3] in [(8, 13, [11, 10], 0), (8, 14, [11, 10], 0)]
    assert data.notes == (
        "Heat dispersion over items in training: 1 before negatives are added, 2 after; "
        "in all data 1 and 2.",
    )


def test_the_number_of_negatives_can_be_chosen(tmp_path: Path) -> None:
    file = made(tmp_path, "buy-cart", WHOLE["buy-cart"])
    data = taobao.read(file, "buy-cart", replace(ALL, negatives=2, test_negatives=5))
    assert (len(data.train), len(data.test)) == (3 * 3, 2 * 6)
    assert (int(data.train.label.sum()), int(data.test.label.sum())) == (3, 2)


def test_the_official_log_by_time(tmp_path: Path) -> None:
    data = taobao.read(made(tmp_path, "official", OFFICIAL), "official", ALL)
    assert data.client_names is not None
    assert data.client_names.tolist() == [2, 9]
    assert rows(data, data.train) == [
        (2, 20, [30], 1),  # what came before, but for 20 itself
        (2, 50, [30], 0),
        (9, 50, [], 1),
        (9, 20, [], 0),
    ]
    assert rows(data, data.test) == [
        (2, 30, [20, 20, 40], 1),
        (2, 50, [20, 20, 40], 0),
        (9, 60, [50], 1),
        (9, 20, [50], 0),
    ]
    assert data.notes[0] == (
        "2 lines of another time than 25 November to 3 December 2017 left out."
    )
    short = taobao.read(made(tmp_path, "official", OFFICIAL), "official", replace(ALL, history=2))
    assert rows(short, short.test)[0] == (2, 30, [20, 40], 1)
    without = taobao.read(made(tmp_path, "official", OFFICIAL), "official", replace(ALL, history=0))
    assert rows(without, without.test)[0] == (2, 30, [], 1)


def test_another_behaviour_can_be_the_positive_one(tmp_path: Path) -> None:
    text = OFFICIAL.replace("buy", "pv")
    data = taobao.read(made(tmp_path, "official", text), "official", replace(ALL, positive="pv"))
    assert int(data.train.label.sum()) == 3
    with pytest.raises(DataError, match=r"No line of .* has behaviour 'buy' and a user that was t"):
        taobao.read(made(tmp_path, "official", text), "official", ALL)


def test_a_share_of_the_users_is_taken_whole(tmp_path: Path) -> None:
    text = "".join(f"{u},{i},1,buy,{START + i}\n" for u in range(500) for i in (u, u + 1, u + 2))
    file = made(tmp_path, "official", text)
    options = replace(ALL, user_share=0.2)
    one, same = (taobao.read(file, "official", options) for _ in range(2))
    other = taobao.read(file, "official", replace(options, seed=1))
    assert 70 < one.clients < 130
    assert one.sizes.unique().tolist() == [6]
    assert one.client_names is not None
    assert same.client_names is not None
    assert other.client_names is not None
    assert one.client_names.tolist() == same.client_names.tolist()
    assert one.client_names.tolist() != other.client_names.tolist()


def many(folder: Path) -> Path:
    """300 users of 40 items, hot and cold, three training purchases each, some in the cart."""
    r = np.random.default_rng(0)
    text = [HEADER]
    for user in range(300):
        bought = r.choice(40, size=5, replace=False, p=np.arange(1, 41) / 820)
        text += [f"{user},{item},buy,train\n" for item in bought[:3]]
        text += [f"{user},{bought[3]},buy,test\n", f"{user},{bought[4]},cart,train\n"]
        text += [f"{user},{bought[0]},cart,train\n"]
    return made(folder, "buy-cart", "".join(text))


def test_no_negative_is_an_item_that_its_user_has(tmp_path: Path) -> None:
    file = many(tmp_path)
    data = taobao.read(file, "buy-cart", replace(ALL, negatives=4, test_negatives=3))
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()[1:]
    have = {tuple(map(int, line.split(",")[:2])) for line in lines}
    for examples in (data.train, data.test):
        for user, item, history, label in rows(data, examples):
            assert ((user, item) in have) == bool(label)
            assert item not in history
    everything = [row for part in (data.train, data.test) for row in rows(data, part)]
    assert len(everything) == 300 * 3 * 5 + 300 * 4


def test_negatives_are_drawn_by_training_popularity(tmp_path: Path) -> None:
    data = taobao.read(many(tmp_path), "buy-cart", replace(ALL, negatives=50))
    item = data.train.ids["item"]
    assert isinstance(item, torch.Tensor)
    label = data.train.label.bool()
    rate = [torch.bincount(part, minlength=41).double() for part in (item[label], item[~label])]
    bought, drawn = (counts / counts.sum() for counts in rate)
    # those who have a hot item cannot be given it, so hot ones are drawn a little less often
    assert float((bought - drawn).abs().max()) < 0.015
    assert float(torch.corrcoef(torch.stack([bought, drawn]))[0, 1]) > 0.97


def test_the_same_seed_gives_the_same_negatives(tmp_path: Path) -> None:
    file = many(tmp_path)
    one, same, other = (
        taobao.read(file, "buy-cart", replace(ALL, seed=seed)) for seed in (3, 3, 4)
    )
    assert rows(one, one.train) == rows(same, same.train)
    assert rows(one, one.test) == rows(same, same.test)
    assert rows(one, one.train) != rows(other, other.train)


def test_a_user_with_nearly_everything_gets_what_is_left(tmp_path: Path) -> None:
    # user 1 has the hot item, which nearly all draws give; all that is left is item 7
    text = HEADER + "".join(f"{u},5,buy,train\n" for u in range(1, 400)) + "500,7,buy,train\n"
    data = taobao.read(made(tmp_path, "buy-cart", text), "buy-cart", ALL)
    assert all(item == 7 for u, item, _, label in rows(data, data.train) if u < 500 and not label)


def test_a_user_with_everything_is_named(tmp_path: Path) -> None:
    text = HEADER + "3,5,buy,train\n3,6,buy,train\n4,5,buy,train\n"
    with pytest.raises(
        DataError, match=r"User 3 has every item that is bought in training: no neg"
    ):
        taobao.read(made(tmp_path, "buy-cart", text), "buy-cart", ALL)


def test_a_file_without_training_purchases_is_named(tmp_path: Path) -> None:
    text = HEADER + "3,5,buy,test\n3,6,cart,train\n"
    with pytest.raises(DataError, match=r"There is not a single training purchase"):
        taobao.read(made(tmp_path, "buy-cart", text), "buy-cart", ALL)


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
    with pytest.raises(DataError, match=r"not a single line in .* that can be used"):
        taobao.read(made(tmp_path, "buy-cart", HEADER), "buy-cart", ALL)
    with pytest.raises(DataError, match=r"not a single line in .* that can be used"):
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


def test_the_buy_cart_file_at_hand_has_its_numbers(data_folder: Path) -> None:
    file = data_folder / "taobao" / "taobao_buy_cart.csv.gz"
    data = taobao.read(file, "buy-cart", TaobaoOptions())
    assert data.clients == 48_749
    assert int(data.train.label.sum()) == 211_022
    assert int(data.test.label.sum()) == 48_749
    assert (len(data.train), len(data.test)) == (422_044, 97_498)
    assert data.tables == {"user": 48_749, "item": 39_494}
    heat = data.heat()["item"].dispersion
    assert 950 < heat < 1_080
    assert data.notes == (
        f"Heat dispersion over items in training: 530 before negatives are added, {heat:,g} after; "
        f"in all data 608 and {data.heat_over_all()['item'].dispersion:,g}.",
    )
