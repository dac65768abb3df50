"""The parts of `gnnjit.train`: configuration, tasks, steps, checkpoints, progress, reports."""
