"""The gateway's configuration: its values, and the sources it is loaded from."""
