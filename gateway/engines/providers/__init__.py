"""Models that are rented by the token: one file per provider, what they share, and the upstream in front."""
