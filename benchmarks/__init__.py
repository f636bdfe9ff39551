"""How fast the parts are: each module is one benchmark."""
