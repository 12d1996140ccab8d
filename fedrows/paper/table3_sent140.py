"""Table 3 and Figure 4 on Sent140."""

from __future__ import annotations

from fedrows.paper.table3 import experiment
from fedrows.paper.tasks import SENT140

EXPERIMENT = experiment(SENT140)
