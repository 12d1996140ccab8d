"""Table 2 and Figure 3 on Amazon."""

from __future__ import annotations

from fedrows.paper.table2 import experiment
from fedrows.paper.tasks import AMAZON

EXPERIMENT = experiment(AMAZON)
