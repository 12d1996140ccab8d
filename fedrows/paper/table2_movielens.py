"""Table 2 and Figure 3 on MovieLens."""

from __future__ import annotations

from fedrows.paper.table2 import experiment
from fedrows.paper.tasks import MOVIELENS

EXPERIMENT = experiment(MOVIELENS)
