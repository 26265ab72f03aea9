"""Fine-tuning: tasks, protocols, search over hyperparameters."""

import pretrain  # noqa: F401  (it refuses a folder that hides the package `data`)
