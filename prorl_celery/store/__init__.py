"""Redis: every key's name and form, the Lua scripts, blobs, and the two kinds of client."""
