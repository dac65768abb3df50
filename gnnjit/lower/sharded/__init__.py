"""Aggregates over several devices: the exchange of rows, and features split over devices."""
