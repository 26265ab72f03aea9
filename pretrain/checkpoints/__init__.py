"""A run's directory: saves, verifies, resumes and opens checkpoints."""

import os

# gcsfs opens paths at gs://; epath would use TensorFlow, where it is installed, with its own credentials.
# Here, because epath looks once, at the first use of any path.
os.environ.setdefault("EPATH_USE_TF", "0")
