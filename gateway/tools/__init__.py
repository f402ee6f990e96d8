"""Server-side tools inside an ordinary answer: which calls are ours, running them, and one public lifecycle."""
