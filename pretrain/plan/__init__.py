"""What a run needs and costs: FLOPs, memory, the step compiled for machines that are not here."""
