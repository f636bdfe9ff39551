"""The exit status of `fairlead fetch` for a model that no repetition makes usable."""

# EX_DATAERR of sysexits.h. Other failures, which a network, a Secret or a volume may cause, end with 1.
UNUSABLE = 65
