"""What Flower starts beside the SuperLink."""

from fedrows.flower.apps import server_app
from ratings.task import TASK

app = server_app(TASK)
