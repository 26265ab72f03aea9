"""What the encoder must say about the corrupted text: one file per objective, and a row in the table."""

from pretrain.objectives.all_token import AllTokenLM
from pretrain.objectives.clm import CorrectiveLM
from pretrain.objectives.mlm import MaskedLM
from pretrain.objectives.rtd import ReplacedTokenDetection
from pretrain.objectives.scl import SequenceContrast
from pretrain.objectives.taco import TokenAlignment

OBJECTIVES = {
  "mlm": MaskedLM,
  "rtd": ReplacedTokenDetection,
  "clm": CorrectiveLM,
  "all_token": AllTokenLM,
  "scl": SequenceContrast,
  "taco": TokenAlignment,
}
