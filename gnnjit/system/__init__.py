"""The machine that gnnjit runs on: memory, processor, clock, and what is kept between runs.

Everything else may import this room; it imports `config`, `errors` and `_compat` alone.
"""
