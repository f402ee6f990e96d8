"""How long a test waits for what must happen: no law, so that it passes on a machine of any speed."""

DEADLINE_S = 60.0
