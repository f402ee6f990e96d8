"""Several processes that serve as one: the home of each session, and the exchange between members."""
