"""`/ui`: one page over the live snapshot. It loads nothing from anywhere, and holds no data until it has a key."""
