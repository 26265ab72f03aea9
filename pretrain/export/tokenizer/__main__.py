"""`python -m pretrain.export.tokenizer DIR`: prints why no tokenizer.json can hold a vocabulary, if none can.

`data.vocabulary import` starts it as a process of its own, since `data` imports nothing of `pretrain`.
"""

import sys

from pretrain.export.tokenizer import convert

if __name__ == "__main__":
  print(convert.warning(sys.argv[1]), end="")
