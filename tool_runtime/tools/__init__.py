"""The built-in tools, one per file and all off until configured: `build` makes one from its settings.

Settings are values: where one is a secret, the configuration has put it in the place of its reference.
"""
