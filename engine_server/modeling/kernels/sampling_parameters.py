"""The parameters of sampling a token, as kernels read them."""

import numpy as np

# Temperature 0 is greedy and needs min_p 1; top_k 0 is all; index is the token's in the output.
PARAMETERS = np.dtype("f4, f4, f4, i4, u8, u4, u4")
PARAMETERS.names = ("temperature", "min_p", "top_p", "top_k", "seed", "choice", "index")
