"""The container that fetches a model with `fairlead fetch`: where it reports its progress, and how it ends."""

# A GET answers with the bytes that are done and the total.
PROGRESS_PATH = "/progress"
# The exit status for a model that no repetition makes usable: EX_DATAERR of sysexits.h. Other failures, which a
# network, a Secret or a volume may cause, end with 1.
UNUSABLE = 65
