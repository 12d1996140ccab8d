"""Table 2 and Figure 3 on Sent140."""

from __future__ import annotations

from fedrows.paper.table2 import experiment
from fedrows.paper.tasks import SENT140

EXPERIMENT = experiment(SENT140)
