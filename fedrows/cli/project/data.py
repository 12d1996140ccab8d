"""The log file as a federation: one client per user. Change the columns to those of your own."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from fedrows import FederatedData, Split, Vocabulary
from fedrows.options import check, option
from fedrows.task import Task

FILE = Path(__file__).with_name("ratings.csv")


@dataclass(frozen=True)
class Options:
    """Flags of the command line: fedrows run data.py:TASK --rarest 3"""

    file: str = option(str(FILE), "The log file.")
    rarest: int = option(2, "Items with fewer ratings share a row.", least=1)

    def __post_init__(self) -> None:
        check(self)


def load(options: Options = Options()) -> FederatedData:  # noqa: B008 - options never change
    """Who liked what; of every user the last fifth is for test, a tenth before it to choose on."""
    frame = pd.read_csv(options.file)
    frame["liked"] = frame["stars"] >= 4
    return FederatedData.from_frame(
        frame,
        client="user",
        label="liked",
        features=["item"],
        tables={"item": Vocabulary(min_count=options.rarest)},
        test=Split.last(0.2, time="time"),
        validation=Split.last(0.1, time="time"),
    )


TASK = Task(
    name="ratings",
    summary="Which items a user gives four stars or more.",
    options=Options,
    load=load,
    model="model.py:build",
    files=lambda options: [Path(options.file)],  # a study runs again when they change
    plan={"rounds": 100, "lr": 0.3},
)
