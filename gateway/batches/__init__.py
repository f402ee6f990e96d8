"""Durable batches: files, batches of requests, lines that are agent runs, and their store."""
