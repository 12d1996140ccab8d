"""Made-up ratings to try the project with: python make_ratings.py FOLDER NODES"""

import csv
import sys
from pathlib import Path

import numpy as np


def write(file: Path, users: range, seed: int) -> None:
    """Ratings of some users: items of which few are popular, some better than others."""
    draw = np.random.default_rng(seed)
    quality = np.random.default_rng(0).normal(size=400)  # of items, the same in every file
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["user", "item", "stars"])
        for user in users:
            mood = draw.normal(0, 0.3)
            for item in (draw.zipf(1.3, 30) - 1) % 400:
                stars = np.clip(round(3.2 + quality[item] + mood + draw.normal(0, 0.5)), 1, 5)
                writer.writerow([f"u{user}", f"item-{item}", int(stars)])


def main(folder: Path, nodes: int) -> None:
    """A file for every node, with 30 users each, and a sample of others for the server."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "sample.csv", range(9_000, 9_100), seed=9_000)
    for node in range(nodes):
        write(folder / f"node-{node}.csv", range(30 * node, 30 * node + 30), seed=node)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
