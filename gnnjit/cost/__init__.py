"""What operations cost: a linear model, learned from measured runs (DESIGN section 5)."""
