"""Weight formats: how the weights of a layer lie in memory, and the products with them."""
