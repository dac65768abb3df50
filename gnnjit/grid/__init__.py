"""Graphs larger than the device: chunks of vertices and edges, streamed."""
