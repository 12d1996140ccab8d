import numpy as np
import pandas as pd
from torch import nn

import fedrows

rng = np.random.default_rng(0)  # 40,000 ratings; a few items are hot, most are cold
item, user = rng.zipf(1.3, 40_000) % 500, rng.integers(0, 1_000, 40_000)
liked = rng.random(len(item)) < 1 / (1 + np.exp(-rng.normal(0, 2, 500)[item]))
frame = pd.DataFrame({"user": user, "item": item, "liked": liked})

data = fedrows.FederatedData.from_frame(frame, client="user", label="liked", features=["item"])


class Recommender(nn.Module):  # written for one client, trained for fifty at a time
    def __init__(self, items: int) -> None:
        super().__init__()
        self.item = nn.Embedding(items, 8)  # the table of the column "item"
        self.score = nn.Linear(8, 1)

    def forward(self, item):
        return self.score(self.item(item))[:, 0]


module = Recommender(data.tables["item"])
result = fedrows.simulate(data, module, "fedsubavg", rounds=100, lr=0.3)
module.load_state_dict(result.state_dict())
for line in result.history[::3]:
    print(f"round {line['round']:3}  test loss {line['test_loss']:.3f}  AUC {line['test_auc']:.3f}")
