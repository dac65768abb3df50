"""Aggregates over several devices: the exchange of rows, and features split over devices.

`aggregate.lower` is called by `lower.dispatch` where the graph is a `ShardedGraph`; on each device
it runs the lowerings of one device (`lower.choose`) between the exchanges.
"""
