"""Weight formats: the memory layout of a layer's weights, and the products with them."""
