"""What stays on the device: layouts of the edge grid, residency, and the budget they fit."""
