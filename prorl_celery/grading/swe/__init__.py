"""Software-engineering instances: their forms, taking an agent's patch out, applying it elsewhere, and grading it."""
