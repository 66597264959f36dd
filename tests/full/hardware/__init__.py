"""What hardware did, on simulated devices: recordings that take longer to replay."""
