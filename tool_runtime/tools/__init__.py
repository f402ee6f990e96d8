"""The built-in tools, one per module, all off until configured: `build` makes one from its settings.

Settings are values: the configuration has replaced a reference to a secret with the secret. A module whose name
begins with `_` is a part of a tool.
"""

GRACE_S = 5.0
"""The runtime waits so much longer than a tool's own time-out, which gives the better error."""
