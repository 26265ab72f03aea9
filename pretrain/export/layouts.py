"""The layouts of an export: folders of stock classes, of official code, and of this program."""

from pretrain.export.official.fit import LAYOUTS as OFFICIAL
from pretrain.export.stock.config import LAYOUTS as STOCK

PLAIN = (*OFFICIAL, "torch")  # read by `torch_forward`, since no installed class does
LAYOUTS = (*STOCK, *PLAIN)
