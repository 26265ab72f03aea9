"""Errors a user can cause. Each has one line for the user and the exit code of the process.

The lowest layer: `data`, `pretrain` and `finetune` raise these; the entry points print the line and
leave with the code. Anything else that escapes is a bug of ours and keeps its traceback.
"""


class UserError(Exception):
  """Something the user can mend. The message says what, what was found, what was expected, what to do."""

  exit_code = 1


class ConfigError(UserError):
  """A config field or a flag is wrong."""

  exit_code = 2


class DataError(UserError):
  """Data, a vocabulary or a checkpoint is missing or wrong."""

  exit_code = 3


class DivergedError(UserError):
  """Training diverged: loss or gradients were not finite for too long."""

  exit_code = 4


class StorageError(UserError):
  """A file or checkpoint could not be written."""

  exit_code = 5
