"""Several processes that serve as one: who is home to a session, and what members tell each other."""
