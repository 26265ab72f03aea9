"""`python -m pretrain.export.tokenizer DIR`: warns if tokenizer.json cannot represent a vocabulary.

`data.vocabulary import` runs it as a child process, because `data` must not import `pretrain`.
"""

import sys

from pretrain.export.tokenizer import convert

if __name__ == "__main__":
  print(convert.warning(sys.argv[1]), end="")
