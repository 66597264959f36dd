"""The blocks of the pages, run as their readers do."""
