"""The log file as a federation: one client per user. Change the columns to those of your own."""

from pathlib import Path

import pandas as pd

from fedrows import FederatedData, Split, Vocabulary

FILE = Path(__file__).with_name("ratings.csv")


def load(file: Path = FILE) -> FederatedData:
    """Who liked what; of every user the last fifth is held out."""
    frame = pd.read_csv(file)
    frame["liked"] = frame["stars"] >= 4
    return FederatedData.from_frame(
        frame,
        client="user",
        label="liked",
        features=["item"],
        tables={"item": Vocabulary(min_count=2)},  # rarer items share the row for unknown ones
        test=Split.last(0.2, time="time"),
    )
