"""A device: its memory and time, the collectives of several, and the progress that is shared with the parent."""
