"""Model providers: the types of a call, the clients that make one, what it costs and at most can cost.

Layer rule: this package imports `agentq.core` and nothing else of agentq. It knows no tool, no thread
and no store. The package root stays empty on purpose: import the module that you need.
"""
