"""The edge grid: vertices in contiguous chunks, edges in blocks of a pair of chunks."""
