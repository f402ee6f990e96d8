"""Adapters, one per engine kind; polling, KV events, and `providers/`: models that are rented by the token."""
