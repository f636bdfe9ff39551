"""Tool calls as models write them: their reading in pieces, and the grammar of one."""
