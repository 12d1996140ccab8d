"""What Flower starts on every node."""

from fedrows.flower.apps import client_app
from ratings.task import JOB

app = client_app(JOB)
