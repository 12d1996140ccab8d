"""A fedrows client without PyTorch: it trains a device program on the device's own data.

counters   randomness, bit for bit as the server's
batches    the device's examples, and the batches of a round
program    loads a program, checks it, and trains
"""

from fedrows_device.batches import Examples, ExamplesError
from fedrows_device.program import Program, ProgramError, Update

__all__ = ["Examples", "ExamplesError", "Program", "ProgramError", "Update"]
