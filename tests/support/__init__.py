"""What tests share and no test is: observers, oracles, strategies, recordings, helpers."""
