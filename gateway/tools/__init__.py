"""Tools of the gateway inside an ordinary answer: which calls run here, and one public lifecycle."""
