"""The layouts of an export: folders of stock classes, of official code, and of this program."""

from pretrain.export.stock.config import LAYOUTS as STOCK

OFFICIAL = ("cocolm", "amos", "fairseq")
PLAIN = (*OFFICIAL, "torch")  # read by `torch_forward`, since no installed class does
LAYOUTS = (*STOCK, *PLAIN)
