"""The arms of E8: six objectives on two backbones, each trained for equally many FLOPs.

Source: docs/results/proof.md, section E8.
"""

from lab.studies.study import Arm

# Both have 4 layers of width 128; a gated MLP of 192 has as many weights as a plain one of 288.
_POST = {"model.num_layers": 4, "model.mlp_size": 288, "optimizer.decay": "no_bias_norm"}
_RECIPES = {
  "mlm": "roberta",
  "electra": "electra",
  "gdes": "electra_gdes",
  "coco_lm": "coco_lm",
  "amos": "amos",
  "taco": "roberta",
}
_DETECTION = ("electra", "gdes", "coco_lm", "amos")
_MODERN = "_modern"  # suffix of an arm
# {arm: steps over those of `mlm` with equally many FLOPs}, by pretrain/plan/flops.py
_SHARES = {
  "mlm": 1.0,
  "electra": 0.898,
  "gdes": 0.898,
  "coco_lm": 0.474,
  "amos": 0.496,
  "taco": 0.991,
  "mlm_modern": 1.026,
  "electra_modern": 0.887,
  "gdes_modern": 0.887,
  "coco_lm_modern": 0.484,
  "amos_modern": 0.509,
  "taco_modern": 1.017,
}
SWEPT = (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3)  # learning rates of the sweep
# {arm: the rate with the best primary figure on UD's development sentences}; docs/lab/cells/e8_rates
_BEST = {
  "mlm": 2e-3,
  "electra": 2.5e-4,
  "gdes": 2.5e-4,
  "coco_lm": 5e-4,
  "amos": 2.5e-4,
  "taco": 2e-3,
  "mlm_modern": 2e-3,
  "electra_modern": 1e-3,
  "gdes_modern": 1e-3,
  "coco_lm_modern": 2e-3,
  "amos_modern": 1e-3,
  "taco_modern": 4e-3,
}


def sweep() -> dict[str, Arm]:
  """Returns an arm for each arm of E8 and each learning rate, such as 'mlm_modern_0.002'."""
  return {f"{name}_{rate:g}": _arm(name, rate) for name in _SHARES for rate in SWEPT}


def arms() -> dict[str, Arm]:
  """Returns the arms; a modern one is compared with its twin, and each with masked LM on its backbone."""
  return {name: _arm(name, _BEST[name], _bases(name)) for name in _SHARES}


def contrasts() -> dict[str, dict[str, float]]:
  """Returns the questions as {name: {arm: weight}}: means over objectives and backbones."""
  gain = {name: 1 / len(_DETECTION) for name in _DETECTION} | {"mlm": -1.0}
  every = dict.fromkeys(_RECIPES, 1 / len(_RECIPES))
  return {
    "modern minus post-LN": _on_both(every, post=-1.0, modern=1.0),
    "detection minus masked LM": _on_both(gain, post=0.5, modern=0.5),
    "detection minus masked LM, modern minus post-LN": _on_both(gain, post=-1.0, modern=1.0),
  }


def _on_both(weights: dict[str, float], *, post: float, modern: float) -> dict[str, float]:
  twins = {name + _MODERN: weight * modern for name, weight in weights.items()}
  return {name: weight * post for name, weight in weights.items()} | twins


def _bases(name: str) -> tuple[str, ...]:
  objective = name.removesuffix(_MODERN)
  masked = name.replace(objective, "mlm")
  return tuple(base for base in dict.fromkeys((objective, masked)) if base != name)


def _arm(name: str, rate: float, bases: tuple[str, ...] = ()) -> Arm:
  objective = name.removesuffix(_MODERN)
  fields = {"optimizer.learning_rate": rate} | (_POST if objective == name else {})
  if objective == "amos":
    fields["model.vocab_chunk_rows"] = 320  # as in E3
  if objective == "taco":
    fields["objectives.taco.weight"] = 1.0  # as in E4
  config = f"configs/{_RECIPES[objective]}_tiny.py{'' if objective == name else ':modern_tiny'}"
  return Arm(config, fields, base="".join(bases[:1]), share=_SHARES[name], against=bases[1:])
