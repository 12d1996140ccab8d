"""Table 3 and Figure 4 on Taobao, which stands in for Alibaba."""

from __future__ import annotations

from fedrows.paper.table3 import experiment
from fedrows.paper.tasks import TAOBAO

EXPERIMENT = experiment(TAOBAO)
