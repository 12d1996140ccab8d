"""The server's side of a deployment: enrolment, and the messages of a round."""
