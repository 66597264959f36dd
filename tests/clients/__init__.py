"""Libraries that nobody here wrote, run as their users run them: one file for each."""
