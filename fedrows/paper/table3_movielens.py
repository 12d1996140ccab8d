"""Table 3 and Figure 4 on MovieLens."""

from __future__ import annotations

from fedrows.paper.table3 import experiment
from fedrows.paper.tasks import MOVIELENS

EXPERIMENT = experiment(MOVIELENS)
