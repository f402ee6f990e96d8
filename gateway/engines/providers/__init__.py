"""Models that are rented by the token: chat completions in the dialect of a service, its throttling obeyed."""
