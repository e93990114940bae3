"""Which modules of a model mix along the sequence: what must be either captured or named as skipped."""

from __future__ import annotations

import re
from collections import defaultdict

from torch import nn

# Class names of sequence mixers in transformers and in code written in its manner.
_MIXER = re.compile(
    r"(Attention|Attn|MLA|Mixer|DeltaNet|Rglru|RecurrentBlock|ShortConv|ShortConvolution|PLELayer|MambaLayer|Mamba"
    r"|Mamba2|SSM|S4D?|S6|Retention|xLSTMLayer|xLSTMBackend|[sm]LSTM\w*|LSTM|GRU|Hyena\w*|TimeMix\w*|RwkvFeedForward)$"
)
# Attention over depth, or over an image: not mixing along the text.
_NOT_MIXER = re.compile(r"(AttentionResidual|Vision\w*|Vit\w*|Siglip\w*|CLIP\w*|Audio\w*)$")
# What may stand in a layer instead of a mixer where others of its class have one (nemotron_h).
_FEED_FORWARD = re.compile(r"(Norm|MLP|MoE|FeedForward|FFN|Dropout)$", re.IGNORECASE)
_OTHER_TOWER = re.compile(r"(^|\.)(vision|visual|image|audio|speech)\w*(\.|$)", re.IGNORECASE)


class Inventory:
    """The mixers of a model by path, with the layer each belongs to.

    Attributes:
        mixers: path -> module, each path once, outermost mixers only (BertAttention, not BertSelfAttention in it).
        layers: path -> module of every element of a stack of layers, also those without a known mixer, but not
            those that have a feed-forward network where others of their class have a mixer.
    """

    def __init__(self, model: nn.Module) -> None:
        self.paths: dict[int, list[str]] = defaultdict(list)
        modules = list(model.named_modules(remove_duplicate=False))
        for path, module in modules:
            self.paths[id(module)].append(path)
        self.mixers: dict[str, nn.Module] = {}
        for path, module in modules:  # parents come before children
            if is_mixer(path, module) and not any(path.startswith(outer + ".") for outer in self.mixers):
                self.mixers[path] = module
        self.layers: dict[str, nn.Module] = {}
        for path, module in modules:
            nested = any(path.startswith(outer + ".") for outer in self.layers)  # experts, heads
            if isinstance(module, nn.ModuleList) and not nested and self._holds_layers(path, module):
                self.layers.update(self._layers(path, module))

    def _holds_layers(self, path: str, modules: nn.ModuleList) -> bool:
        """Whether a module list is the stack of layers: one of them holds a mixer, or is called a layer."""
        if _OTHER_TOWER.search(path):
            return False
        mixes = any(p.startswith(path + ".") for p in self.mixers)
        return mixes or any(re.search(r"(Layer|Block)$", type(m).__name__) for m in modules)

    def _layers(self, path: str, stack: nn.ModuleList) -> dict[str, nn.Module]:
        layers = {f"{path}.{i}": layer for i, layer in enumerate(stack)}
        mixing = {type(m) for p, m in layers.items() if any(mixer.startswith(p + ".") for mixer in self.mixers)}

        def feeds_forward(layer: nn.Module) -> bool:
            return type(layer) in mixing and all(_FEED_FORWARD.search(type(m).__name__) for m in layer.children())

        return {p: layer for p, layer in layers.items() if not feeds_forward(layer)}

    def path(self, module: nn.Module, running: list[nn.Module]) -> str:
        """The path of a module; of a shared one, the path inside the layer that is running."""
        paths = self.paths.get(id(module), [type(module).__name__])
        for layer in reversed(running):
            for prefix in self.paths[id(layer)]:
                for path in paths:
                    if path.startswith(prefix + ".") and prefix in self.layers:
                        return path
        return paths[0]


def is_mixer(path: str, module: nn.Module) -> bool:
    """Whether a module, by the name of its class, mixes along the text."""
    named = _MIXER.search(type(module).__name__)
    return bool(named) and mixes_along_the_text(module) and not _OTHER_TOWER.search(path)


def mixes_along_the_text(module: nn.Module) -> bool:
    """False for attention over depth or over an image, by the name of the class."""
    return not _NOT_MIXER.search(type(module).__name__)


def layer_number(path: str) -> int | None:
    """The number of the layer in a module path: "model.layers.5.self_attn" -> 5."""
    numbers = [part for part in path.split(".") if part.isdigit()]
    return int(numbers[0]) if numbers else None
