from collections.abc import Sequence

from absl import flags
from ml_collections import ConfigDict

def DEFINE_config_dict(
  name: str, config: ConfigDict, *, flag_values: flags.FlagValues, sys_argv: Sequence[str]
) -> flags.FlagHolder: ...
