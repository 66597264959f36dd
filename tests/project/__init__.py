"""The project itself: imports, README, examples."""
