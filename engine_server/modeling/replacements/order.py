"""The kinds of modules that we replace, in the order in which they are applied; each may build on those before it."""

from engine_server.modeling.replacements.activations import ACTIVATIONS
from engine_server.modeling.replacements.decoder_layers import DECODER_LAYERS
from engine_server.modeling.replacements.experts import EXPERTS
from engine_server.modeling.replacements.gates import GATES
from engine_server.modeling.replacements.layer_norms import LAYER_NORMS
from engine_server.modeling.replacements.mlps import MLPS
from engine_server.modeling.replacements.norms import NORMS
from engine_server.modeling.replacements.rotations import DEFERRED_ROTATIONS, ROTATIONS
from engine_server.modeling.replacements.routers import ROUTERS

REPLACEMENTS = (
    EXPERTS,
    ROUTERS,
    MLPS,
    NORMS,
    LAYER_NORMS,
    GATES,  # of experts and fused MLPs
    ACTIVATIONS,  # that no gate includes
    ROTATIONS,
    DEFERRED_ROTATIONS,  # with fused norms before them
    DECODER_LAYERS,  # with fused norms
)
