"""Table 3 and Figure 4 on Amazon."""

from __future__ import annotations

from fedrows.paper.table3 import experiment
from fedrows.paper.tasks import AMAZON

EXPERIMENT = experiment(AMAZON)
