"""A run's directory: saves, verifies, resumes and opens checkpoints."""
