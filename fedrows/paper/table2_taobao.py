"""Table 2 and Figure 3 on Taobao, which stands in for Alibaba."""

from __future__ import annotations

from fedrows.paper.table2 import experiment
from fedrows.paper.tasks import TAOBAO

EXPERIMENT = experiment(TAOBAO)
