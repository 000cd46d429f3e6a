"""An upstream's answer: its headers and events, looked through for keys, usage and tokens."""
