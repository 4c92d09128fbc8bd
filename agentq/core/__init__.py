"""Pure values and rules: no I/O, no clock, no network. Everything above may import this; it imports nothing of agentq."""
