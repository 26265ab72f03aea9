"""Plans of runs: FLOPs, memory, and the step compiled for machines that are not here."""
