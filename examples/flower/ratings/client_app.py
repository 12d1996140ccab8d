"""What Flower starts on every node."""

from fedrows.flower.apps import client_app
from ratings.task import TASK

app = client_app(TASK)
