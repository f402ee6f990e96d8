"""Fleets of agents against an engine, straight and through whatever stands before it, interleaved in one run."""
