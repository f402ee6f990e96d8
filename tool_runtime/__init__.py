"""Runs tool calls, each identical one once. Knows nothing of HTTP or of the gateway."""
