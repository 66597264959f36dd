"""The words of errors."""
