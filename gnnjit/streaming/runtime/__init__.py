"""The run of a streamed program: transfers, what is in flight, and the measured timeline."""
