"""What happens right now, for people who look: one snapshot, the terminal view and the page over it."""
