"""What a model is: its sizes, its layers and the precision that it computes in.

The field names are those of `fathom inspect --json` under "model"; a plan is written in the short
form of the same command, e.g. "4*D + 6*(48*S16 + D)".
"""

import dataclasses
import re

import torch


@dataclasses.dataclass(frozen=True)
class Settings:
    d: int  # width of the residual
    heads: int  # H
    kv_heads: int  # G; query head j reads key/value head j // (H / G)
    head_dim: int  # h; H * h may differ from d
    ffn: int  # F; nothing when every FFN is a mixture of experts
    vocabulary: int  # V
    theta: float = 1e6
    eps: float = 1e-6
    gate: str = "XMOD"  # XMOD, MOD or NONE
    tau: float = 1.0
    increment: float = 1.0
    alignment: str = "BIASED"  # BIASED or RAW
    reset_every: int = 0  # 0: counts are reset by layers that see all tokens alone
    routing_coefficient: float = 1e-4
    document_mask: bool = False
    experts: int = 0  # E, routed experts of a mixture
    routed: int = 0  # of them, those that each token goes to
    shared: int = 0  # experts that every token goes to besides
    expert_ffn: int = 0  # width of one expert
    scoring: str = "SIGMOID"  # SIGMOID or SOFTMAX
    balance_coefficient: float = 1e-4
    expert_bias_rate: float = 1e-3

    def __post_init__(self):
        if self.gate not in ("XMOD", "MOD", "NONE"):
            raise ValueError(f"gate is {self.gate!r}; it must be XMOD, MOD or NONE")
        if self.alignment not in ("BIASED", "RAW"):
            raise ValueError(f"alignment is {self.alignment!r}; it must be BIASED or RAW")
        if self.scoring not in ("SIGMOID", "SOFTMAX"):
            raise ValueError(f"scoring is {self.scoring!r}; it must be SIGMOID or SOFTMAX")
        if self.routed > self.experts:
            raise ValueError(f"routed is {self.routed}; there are {self.experts} experts")
        if self.heads % self.kv_heads or self.head_dim % 2:
            raise ValueError("heads must be a multiple of kv_heads, and head_dim must be even")

    @staticmethod
    def from_json(model):
        """From the object under "model"; what it has besides is left aside."""
        known = {field.name for field in dataclasses.fields(Settings)}
        return Settings(**{name: value for name, value in model.items() if name in known})


@dataclasses.dataclass(frozen=True)
class Layer:
    kind: str  # "D": sees all tokens; "S": sees the top floor(L / sparsity) of each sequence
    sparsity: int = 1
    experts: bool = False  # the FFN is a mixture of experts


def parse_plan(text):
    """The layers, in order, of a plan in short form."""
    tokens = re.findall(r"loop|[A-Z]+\d*|\d+|[-+*(),]|\S", text)
    layers, rest = _parse_sum(tokens)
    if rest:
        raise ValueError(f"plan {text!r} cannot be read from {rest[0]!r} on")
    return layers


def _parse_sum(tokens):
    layers, tokens = _parse_term(tokens)
    while tokens and tokens[0] == "+":
        more, tokens = _parse_term(tokens[1:])
        layers = layers + more
    return layers, tokens


def _parse_term(tokens):
    if not tokens:
        raise ValueError("a plan ends where a layer should stand")
    head, rest = tokens[0], tokens[1:]
    if head.isdigit():
        if not rest or rest[0] != "*":
            raise ValueError(f"a plan has the number {head} without '*' behind it")
        layers, rest = _parse_term(rest[1:])
        return layers * int(head), rest
    if head == "(":
        layers, rest = _parse_sum(rest)
        if not rest or rest[0] != ")":
            raise ValueError("a plan has '(' without ')'")
        return layers, rest[1:]
    if head in ("D", "E"):
        return [Layer("D", experts=head == "E")], rest
    if re.fullmatch(r"SE?[1-9]\d*", head):
        return [Layer("S", int(head.lstrip("SE")), experts="E" in head)], rest
    raise ValueError(f"a plan has {head!r}; this program knows D, E, and S and SE with a number")


@dataclasses.dataclass(frozen=True)
class Precision:
    master: torch.dtype  # weights, gradients, optimizer state
    compute: torch.dtype  # what matrix products read, and the residual
    wide: torch.dtype  # inside norms, rotation, scores, softmax, routers, gates and the loss


FP64 = Precision(torch.float64, torch.float64, torch.float64)
FP32 = Precision(torch.float32, torch.float32, torch.float32)
BF16 = Precision(torch.float32, torch.bfloat16, torch.float32)
PRECISIONS = {"FP64": FP64, "FP32": FP32, "BF16": BF16}
