"""What hardware was seen to do."""
