"""Layers that can be lifted over a cohort: for layers of PyTorch that cannot, and some it lacks.

LSTM, GRU          as torch.nn's, with their arguments and state dicts
BatchNorm          as torch.nn.BatchNorm1d, but a client normalises by its own batch only
Dice               DIN's activation
AttentionPooling   the mean of a list, weighted by a softmax of scores
TiedOutput         scores of drawn candidates by their own input rows: a sampled softmax
"""

from fedrows.nn.attention import AttentionPooling
from fedrows.nn.candidates import TiedOutput
from fedrows.nn.norm import BatchNorm, Dice
from fedrows.nn.recurrent import GRU, LSTM

__all__ = ["LSTM", "GRU", "BatchNorm", "Dice", "AttentionPooling", "TiedOutput"]
