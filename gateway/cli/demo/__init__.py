"""`turngate demo`: a fleet on an engine that is too small for it, straight and through the gateway."""

from gateway.cli.demo.run import run

__all__ = ["run"]
