"""Screen an upstream's answer: headers and events, for keys, usage and tokens."""
