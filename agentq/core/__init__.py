"""Pure values and rules: no I/O, no clock, no network. It imports nothing of agentq."""
