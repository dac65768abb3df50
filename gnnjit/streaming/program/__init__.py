"""A streamed function as operations over chunks and blocks, and the executables they run."""
