"""What a gateway is configured with, and where a configuration comes from."""
