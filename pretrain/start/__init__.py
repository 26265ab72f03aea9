"""What a run begins with, looked at before anything compiles."""
