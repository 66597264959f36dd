"""Helpers that tests share: observations as plain data, oracles, strategies, recordings."""
