"""What Flower starts beside the SuperLink."""

from fedrows.flower.apps import server_app
from ratings.task import JOB

app = server_app(JOB)
